/* The embedded corpus: what is said of it is read back out of its text. Nothing here knows its
 * sentences; names, quotations, numbers and brackets are found as a reader would find them. */
#include "data/corpus.h"
#include "support/bigram.h"
#include "support/test.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DOCUMENTS = 1500, WORDS_MAX = 8, WORD_ROOM = 32 };

typedef void (*document_check)(const char *text);

static const char *document(weft_split split, uint64_t seed, uint32_t number) {
    static char text[WEFT_CORPUS_DOCUMENT + 1];
    weft_sequence_place p = {.split = split, .seed = seed, .iteration = 3, .sequence = number / 50};
    int64_t length = weft_corpus_document(&p, number % 50, text);
    assert_in_range(length, 50, WEFT_CORPUS_DOCUMENT - 1);
    text[length] = '\0';
    assert_int_equal(strlen(text), length);
    return text;
}

/* Runs the check on the documents whose title begins so; returns how many. */
static int each_document(const char *title, document_check check) {
    int found = 0;
    for (uint32_t i = 0; i < DOCUMENTS; i++) {
        const char *text = document(i % 4 ? WEFT_SPLIT_TRAIN : WEFT_SPLIT_VAL, 7, i);
        if (strncmp(text, title, strlen(title)) != 0) continue;
        check(text);
        found++;
    }
    return found;
}

/* The word that begins at `at`: its length. */
static size_t word_length(const char *at) {
    size_t n = 0;
    while (isalpha((unsigned char)at[n]))
        n++;
    return n;
}

static bool is_word(const char *at, const char *word) {
    return word_length(at) == strlen(word) && strncmp(at, word, strlen(word)) == 0;
}

/* The next word at or after `at`; NULL: none. */
static const char *next_word(const char *at) {
    while (*at && !isalpha((unsigned char)*at))
        at++;
    return *at ? at : NULL;
}

static void check_layout(const char *text) {
    size_t n = strlen(text);
    assert_true(isupper((unsigned char)text[0]));
    assert_non_null(strstr(text, "\n\n"));
    assert_string_equal(text + n - 3, "\n\n\n");
    assert_ptr_equal(strstr(text, "\n\n\n"), text + n - 3);
    assert_null(strstr(text, " \n"));
    assert_null(strstr(text, "  "));
    assert_null(strchr(text, '$'));
    for (size_t i = 0; i < n; i++)
        assert_true(text[i] == '\n' || (text[i] >= ' ' && text[i] <= '~'));
}

TEST(test_documents_are_plain_text) {
    assert_int_equal(each_document("", check_layout), DOCUMENTS);
}

/* Every quotation is there twice, word for word. */
static void check_quotations(const char *text) {
    const char *quotes[4];
    size_t lengths[4];
    int found = 0;
    for (const char *at = strchr(text, '"'); at; at = strchr(at + 1, '"')) {
        const char *end = strchr(at + 1, '"');
        assert_non_null(end);
        assert_true(found < 4);
        assert_true(end[-1] == '.' || end[-1] == ',');
        quotes[found] = at + 1;
        lengths[found++] = (size_t)(end - 1 - (at + 1));
        at = end;
    }
    assert_int_equal(found, 2);
    assert_true(lengths[0] > 12);
    assert_int_equal(lengths[0], lengths[1]);
    assert_memory_equal(quotes[0], quotes[1], lengths[0]);
}

TEST(test_quotations_are_repeated) {
    assert_true(each_document("The Story", check_quotations) > DOCUMENTS / 3);
    assert_true(each_document("A Letter", check_quotations) > DOCUMENTS / 10);
}

/* Whether a capital at `at` needs no name: a sentence or a quotation begins there. */
static bool begins_sentence(const char *text, const char *at) {
    if (at == text || at[-1] == '\n' || at[-1] == '"') return true;
    return at - text >= 2 && at[-1] == ' ' && strchr(".?\"", at[-2]);
}

/* Within sentences, capitals are the hero's, the friend's and the place's. */
static void check_names(const char *text) {
    char names[WORDS_MAX][WORD_ROOM], hero[WORD_ROOM];
    int found = 0;
    assert_int_equal(sscanf(text, "The Story of %31s and the ", hero), 1);
    const char *body = strstr(text, "\n\n") + 2;
    for (const char *at = next_word(body); at; at = next_word(at + word_length(at))) {
        if (!isupper((unsigned char)*at) || begins_sentence(body, at) || is_word(at, "May"))
            continue;
        int i = 0;
        while (i < found && !is_word(at, names[i]))
            i++;
        if (i < found) continue;
        assert_true(found < WORDS_MAX);
        snprintf(names[found++], WORD_ROOM, "%.*s", (int)word_length(at), at);
    }
    bool named = false;
    for (int i = 0; i < found; i++)
        named |= strcmp(names[i], hero) == 0;
    if (found != 3 || !named) fail_msg("%d names in: %s", found, text);
}

static void check_pronouns(const char *text) {
    static const char *const his[] = {"he", "him", "his", "He", "His"}, *const hers[] = {
                                                                            "she", "her", "She",
                                                                            "Her"};
    int he = 0, she = 0;
    for (const char *at = next_word(text); at; at = next_word(at + word_length(at))) {
        for (int i = 0; i < 5; i++)
            he += is_word(at, his[i]);
        for (int i = 0; i < 4; i++)
            she += is_word(at, hers[i]);
    }
    if ((he == 0) == (she == 0)) fail_msg("%d he, %d she in: %s", he, she, text);
}

/* The object is always "the noun" or has the title's adjective before it. */
static void check_object(const char *text) {
    char look[WORD_ROOM], noun[WORD_ROOM];
    assert_int_equal(sscanf(text, "The Story of %*s and the %31s %31s", look, noun), 2);
    int found = 0;
    for (const char *at = next_word(text), *last = at; at;
         last = at, at = next_word(at + word_length(at))) {
        if (!is_word(at, noun)) continue;
        if (!is_word(last, look) && !is_word(last, "the") && !is_word(last, "The"))
            fail_msg("%s after %.9s in: %s", noun, last, text);
        found++;
    }
    assert_true(found >= 3);
}

TEST(test_stories_are_consistent) {
    each_document("The Story", check_names);
    each_document("The Story", check_pronouns);
    each_document("The Story", check_object);
}

/* What is asked back is what was packed, in the same order. */
static void check_packed(const char *text) {
    static const char *const again[] = {"was needed: ", "gave away the ", "to return "};
    const char *from = NULL;
    for (int i = 0; i < 3 && !from; i++)
        from = strstr(text, again[i]);
    if (!from) return;
    const char *end = strchr(from, '.'), *first = strstr(from, "the ") + 4;
    char noun[WORD_ROOM];
    snprintf(noun, sizeof noun, " %.*s", (int)word_length(first), first);
    for (const char *seen = strstr(text, noun); seen && seen < from;
         seen = strstr(seen + 1, noun)) {
        const char *stop = strchr(seen, '.'), *at = seen, *the = first;
        while (the && the < end && at && at < stop) {
            snprintf(noun, sizeof noun, " %.*s", (int)word_length(the), the);
            at = strstr(at, noun);
            the = strstr(the, "the ");
            the = the ? the + 4 : NULL;
        }
        if (at && at < stop && (!the || the >= end)) return;
        snprintf(noun, sizeof noun, " %.*s", (int)word_length(first), first);
    }
    fail_msg("nothing packed as it is unpacked: %s", text);
}

TEST(test_lists_are_repeated) {
    each_document("The Story", check_packed);
}

/* The next number at or after *at; -1: none. */
static long next_number(const char **at) {
    while (**at && !isdigit((unsigned char)**at))
        (*at)++;
    if (!**at) return -1;
    char *end;
    long n = strtol(*at, &end, 10);
    *at = end;
    return n;
}

/* In prose there are no numbers, or three, the largest the sum of the others. */
static void check_prose_sum(const char *text) {
    long a = next_number(&text);
    if (a < 0) return;
    long b = next_number(&text), c = next_number(&text);
    assert_true(b > 0 && c > 0);
    assert_int_equal(next_number(&text), -1);
    long most = a > b ? (a > c ? a : c) : (b > c ? b : c);
    assert_int_equal(2 * most, a + b + c);
}

static void check_sums(const char *text) {
    const char *at = strstr(text, "\n\n") + 2;
    long last = -1, a, b, c;
    char sign;
    int used = 0, lines = 0;
    while (sscanf(at, "%ld %c %ld = %ld\n%n", &a, &sign, &b, &c, &used) == 4) {
        assert_int_equal(c, sign == '+' ? a + b : a - b);
        assert_true(c >= 0 && (sign == '+' || sign == '-'));
        if (lines++) assert_int_equal(a, last);
        last = c;
        at += used;
    }
    assert_true(lines >= 4);
    assert_int_equal(next_number(&at), last);
}

static void check_packing_list(const char *text) {
    const char *at = strstr(text, "\n\n") + 2;
    const char *packed = strstr(text, "packed ");
    long all = 0, count;
    char noun[WORD_ROOM];
    int used;
    while (sscanf(at, "- %ld %31s\n%n", &count, noun, &used) == 2) {
        all += count;
        at += used;
        packed = strstr(packed, noun);
        assert_non_null(packed);
    }
    assert_int_equal(next_number(&at), all);
}

TEST(test_sums_are_right) {
    each_document("The Story", check_prose_sum);
    each_document("A Letter", check_prose_sum);
    assert_true(each_document("Sums", check_sums) > DOCUMENTS / 40);
    assert_true(each_document("What", check_packing_list) > DOCUMENTS / 20);
}

static void check_brackets(const char *text) {
    static const char open[] = "([{<", close[] = ")]}>";
    int depth = 0;
    for (const char *at = text; *at; at++) {
        if (strchr(open, *at)) {
            assert_true(depth < 4);
            assert_int_equal(*at, open[depth++]);
        } else if (strchr(close, *at)) {
            assert_true(depth > 0);
            assert_int_equal(*at, close[--depth]);
        } else if (*at == '\n') {
            assert_int_equal(depth, 0);
        }
    }
}

TEST(test_brackets_balance) {
    each_document("", check_brackets);
    assert_true(each_document("Boxes", check_brackets) > DOCUMENTS / 40);
}

TEST(test_sequences_are_their_documents) {
    enum { TIME = 6000 };
    static int32_t tokens[TIME], targets[TIME];
    static char text[WEFT_CORPUS_DOCUMENT];
    weft_sequence_place p = {.split = WEFT_SPLIT_TRAIN, .seed = 11, .iteration = 2, .sequence = 5};
    weft_corpus_fill(&p, TIME, tokens, targets);
    int64_t length = weft_corpus_document(&p, 0, text), from = 0;
    bool found = false;
    for (; from < length && !found; from++) {
        found = true;
        for (int64_t i = from; found && i < length; i++)
            found = tokens[i - from] == text[i];
    }
    assert_true(found);
    int64_t at = length - (from - 1);
    for (uint32_t number = 1; at < TIME; number++) {
        length = weft_corpus_document(&p, number, text);
        for (int64_t i = 0; i < length && at < TIME; i++)
            assert_int_equal(tokens[at++], text[i]);
    }
}

static uint64_t hash_text(const char *text) {
    uint64_t hash = 1469598103934665603u;
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

/* Not even under the key that validation has. */
TEST(test_training_never_shows_validation) {
    static uint64_t held_out[DOCUMENTS];
    for (uint32_t i = 0; i < DOCUMENTS; i++)
        held_out[i] = hash_text(document(WEFT_SPLIT_VAL, 0, i));
    for (uint64_t seed = 0; seed < 3; seed++)
        for (uint32_t i = 0; i < DOCUMENTS; i++) {
            uint64_t hash = hash_text(document(WEFT_SPLIT_TRAIN, seed, i));
            for (uint32_t j = 0; j < DOCUMENTS; j++)
                assert_true(hash != held_out[j]);
        }
}

static weft_dataset *open_embedded(void) {
    static weft_config c;
    weft_config_defaults(&c);
    weft_dataset *d;
    if (weft_dataset_open(&c, &d) != WEFT_OK) fail_msg("%s", weft_error_message());
    return d;
}

/* Letters as frequent as English has them, words as long; neither noise nor one line for ever. */
TEST(test_text_is_like_english) {
    enum { TIME = 400000 };
    int32_t *tokens = malloc(2 * TIME * sizeof *tokens);
    assert_non_null(tokens);
    weft_sequence_place p = {.split = WEFT_SPLIT_TRAIN, .seed = 1};
    weft_corpus_fill(&p, TIME, tokens, tokens + TIME);
    double counts[256] = {0}, entropy = 0;
    for (int64_t i = 0; i < TIME; i++)
        counts[tokens[i]]++;
    for (int i = 0; i < 256; i++)
        if (counts[i] > 0) entropy -= counts[i] / TIME * log2(counts[i] / TIME);
    print_message("entropy of a byte %.3f bits, spaces %.3f, e %.3f\n", entropy, counts[' '] / TIME,
                  counts['e'] / TIME);
    assert_true(entropy > 4.0 && entropy < 4.7);
    assert_true(counts[' '] / TIME > 0.14 && counts[' '] / TIME < 0.22);
    assert_true(counts['e'] / TIME > 0.07 && counts['e'] / TIME < 0.13);
    free(tokens);
}

/* The baseline of `weft train --config defconfigs/demo`: between what a model of letters' frequencies
 * has, about 3 nats, and what can be learnt of the text. */
TEST(test_bigram_baseline_is_sound) {
    weft_dataset *d = open_embedded();
    double loss, other, more;
    assert_int_equal(weft_bigram_loss(d, 1, 1 << 20, 1 << 18, &loss), WEFT_OK);
    assert_int_equal(weft_bigram_loss(d, 2, 1 << 20, 1 << 18, &other), WEFT_OK);
    assert_int_equal(weft_bigram_loss(d, 1, 4 << 20, 1 << 18, &more), WEFT_OK);
    print_message("held-out bigram loss %.4f nats a byte (other seed %.4f, four times the text "
                  "%.4f)\n",
                  loss, other, more);
    assert_true(loss > 1.8 && loss < 2.6);
    assert_true(fabs(loss - other) < 0.01 && fabs(loss - more) < 0.02);
    weft_dataset_close(d);
}

/* A bigram model of what it has never seen is uniform. */
TEST(test_bigram_of_nothing_is_uniform) {
    weft_dataset *d = open_embedded();
    double loss;
    assert_int_equal(weft_bigram_loss(d, 1, 0, 4096, &loss), WEFT_OK);
    assert_true(fabs(loss - log(256)) < 1e-12);
    assert_int_equal(weft_bigram_loss(d, 1, 4096, 0, &loss), WEFT_EINPUT);
    weft_dataset_close(d);
}

/* The thread's own time, so that others on the machine do not count. */
static double thread_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool is_slowed(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
    return true;
#endif
#endif
    const char *runner = getenv("RUNNER");
    return runner && *runner;
}

TEST(test_text_comes_fast) {
    if (is_slowed()) {
        print_message("speed is not measured under a sanitizer or an emulator\n");
        skip();
    }
    enum { TIME = 1 << 20 };
    int32_t *tokens = malloc(2 * TIME * sizeof *tokens);
    assert_non_null(tokens);
    double best = 0;
    for (uint32_t try = 0; try < 5; try++) {
        weft_sequence_place p = {.split = WEFT_SPLIT_TRAIN, .seed = 1, .iteration = try};
        double begun = thread_seconds();
        weft_corpus_fill(&p, TIME, tokens, tokens + TIME);
        double rate = TIME / 1e6 / (thread_seconds() - begun);
        if (rate > best) best = rate;
    }
    print_message("%.0f MB/s\n", best);
    assert_true(best >= 20);
    free(tokens);
}

RUN_TESTS(NULL, NULL)
