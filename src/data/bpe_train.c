/* Training of a byte-level BPE. Equal pieces are one word with a count, so each is looked at once.
 * A table holds for every pair of neighbours how often it occurs and in which words; a heap gives
 * the most frequent. Joining a pair rewrites the words it is in and corrects the counts of the
 * pairs around it. An entry of the heap may be out of date: it is looked at again when it comes to
 * the top.
 *
 * Words are put in order before training, so the order of the texts does not matter. */
#include "data/texts.h"

#include "base/text.h"
#include "data/tokenizer_internal.h"

enum { RAW_PIECE = 256 };

typedef struct {
    int64_t at; /* in the texts' pool, and in the symbols */
    int32_t bytes, length;
    int64_t count;
} word;

typedef struct {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    int32_t *words;
    int32_t n_words;
    int64_t room;
    bool touched;
} pair;

typedef struct {
    int64_t count;
    int32_t pair;
} candidate;

struct weft_bpe_trainer {
    weft_tokenizer *texts; /* of the words: a table of their bytes is what it is used as */
    word *words;
    int64_t words_room;
    int32_t *symbols;
    pair *pairs;
    int64_t n_pairs, pairs_room;
    int32_t *pair_slots;
    int64_t n_pair_slots;
    candidate *heap;
    int64_t n_heap, heap_room;
    int32_t *touched; /* pairs that became more frequent */
    int64_t n_touched, touched_room;
    uint64_t *merges; /* the pairs that were joined; some make the same token */
    int64_t n_merges, merges_room;
};

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "no memory to train a tokenizer on so many different words");
}

weft_status weft_bpe_trainer_open(weft_bpe_trainer **out) {
    *out = NULL;
    WEFT_TRY(weft_gpt2_prepare());
    *out = calloc(1, sizeof **out);
    if (!*out || weft_tokenizer_new("words", &(*out)->texts) != WEFT_OK) {
        free(weft_steal(out));
        return no_memory();
    }
    (*out)->texts->ids_most = INT32_MAX;
    return WEFT_OK;
}

void weft_bpe_trainer_close(weft_bpe_trainer *b) {
    if (!b) return;
    for (int64_t i = 0; i < b->n_pairs; i++)
        free(b->pairs[i].words);
    weft_tokenizer_close(b->texts);
    WEFT_FREE(b->words, b->symbols, b->pairs, b->pair_slots, b->heap, b->touched, b->merges, b);
}

WEFT_GETTER(int64_t, weft_bpe_trainer_words, weft_bpe_trainer, texts->vocab)

static bool count_word(weft_bpe_trainer *b, const char *text, size_t n) {
    weft_tokenizer *t = b->texts;
    int32_t id = weft_tokenizer_find(t, text, (int64_t)n);
    if (id < 0) {
        id = (int32_t)t->vocab;
        if (weft_tokenizer_add_token(t, id, text, (int64_t)n, true) != WEFT_OK ||
            !weft_grow_list(&b->words, &b->words_room, t->vocab, sizeof *b->words))
            return false;
        b->words[id] = (word){.at = t->offset[id], .bytes = (int32_t)n};
    }
    b->words[id].count++;
    return true;
}

weft_status weft_bpe_trainer_add(weft_bpe_trainer *b, const char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        size_t valid = at + weft_utf8_valid(text + at, bytes - at);
        while (at < valid) {
            size_t n = weft_gpt2_piece(text + at, valid - at);
            if (n > WEFT_ENCODE_MAX || !count_word(b, text + at, n)) return no_memory();
            at += n;
        }
        size_t raw = at + weft_utf8_invalid(text + at, bytes - at);
        while (at < raw) {
            size_t n = raw - at < RAW_PIECE ? raw - at : RAW_PIECE;
            if (!count_word(b, text + at, n)) return no_memory();
            at += n;
        }
    }
    return WEFT_OK;
}

static int compare_words(const void *a, const void *b, void *pool) {
    const word *x = a, *y = b;
    int32_t least = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp((char *)pool + x->at, (char *)pool + y->at, (size_t)least);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int64_t pair_slot(const weft_bpe_trainer *b, uint64_t key) {
    int64_t mask = b->n_pair_slots - 1;
    int64_t at = (int64_t)(weft_hash_mix(key) & (uint64_t)mask);
    while (b->pair_slots[at] >= 0 && b->pairs[b->pair_slots[at]].key != key)
        at = (at + 1) & mask;
    return at;
}

/* NULL: no memory. */
static pair *find_pair(weft_bpe_trainer *b, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    if (b->n_pair_slots < 2 * (b->n_pairs + 1)) {
        int64_t n = b->n_pair_slots ? 2 * b->n_pair_slots : 4096;
        int32_t *slots = malloc((size_t)n * sizeof *slots);
        if (!slots) return NULL;
        memset(slots, 0xFF, (size_t)n * sizeof *slots); /* -1 in each */
        free(b->pair_slots);
        b->pair_slots = slots;
        b->n_pair_slots = n;
        for (int64_t i = 0; i < b->n_pairs; i++)
            slots[pair_slot(b, b->pairs[i].key)] = (int32_t)i;
    }
    int64_t slot = pair_slot(b, key);
    if (b->pair_slots[slot] < 0) {
        if (b->n_pairs == INT32_MAX ||
            !weft_grow_list(&b->pairs, &b->pairs_room, b->n_pairs + 1, sizeof *b->pairs))
            return NULL;
        b->pairs[b->n_pairs] = (pair){.key = key};
        b->pair_slots[slot] = (int32_t)b->n_pairs++;
    }
    return &b->pairs[b->pair_slots[slot]];
}

static bool more_of(weft_bpe_trainer *b, int32_t left, int32_t right, int32_t in, int64_t count) {
    pair *p = find_pair(b, left, right);
    if (!p) return false;
    p->count += count;
    if (!p->n_words || p->words[p->n_words - 1] != in) {
        if (!weft_grow_list(&p->words, &p->room, p->n_words + 1, sizeof *p->words)) return false;
        p->words[p->n_words++] = in;
    }
    if (p->touched) return true;
    if (!weft_grow_list(&b->touched, &b->touched_room, b->n_touched + 1, sizeof *b->touched))
        return false;
    p->touched = true;
    b->touched[b->n_touched++] = (int32_t)(p - b->pairs);
    return true;
}

static bool fewer_of(weft_bpe_trainer *b, int32_t left, int32_t right, int64_t count) {
    pair *p = find_pair(b, left, right);
    if (p) p->count -= count;
    return p != NULL;
}

static bool is_before(const weft_bpe_trainer *b, candidate x, candidate y) {
    return x.count != y.count ? x.count > y.count : b->pairs[x.pair].key < b->pairs[y.pair].key;
}

static bool heap_push(weft_bpe_trainer *b, candidate c) {
    if (!weft_grow_list(&b->heap, &b->heap_room, b->n_heap + 1, sizeof *b->heap)) return false;
    int64_t at = b->n_heap++;
    for (; at > 0 && is_before(b, c, b->heap[(at - 1) / 2]); at = (at - 1) / 2)
        b->heap[at] = b->heap[(at - 1) / 2];
    b->heap[at] = c;
    return true;
}

static candidate heap_pop(weft_bpe_trainer *b) {
    candidate top = b->heap[0], last = b->heap[--b->n_heap];
    int64_t at = 0;
    for (int64_t child; (child = 2 * at + 1) < b->n_heap; at = child) {
        if (child + 1 < b->n_heap && is_before(b, b->heap[child + 1], b->heap[child])) child++;
        if (!is_before(b, b->heap[child], last)) break;
        b->heap[at] = b->heap[child];
    }
    b->heap[at] = last;
    return top;
}

static bool push_touched(weft_bpe_trainer *b) {
    for (int64_t i = 0; i < b->n_touched; i++) {
        pair *p = &b->pairs[b->touched[i]];
        p->touched = false;
        if (p->count > 0 && !heap_push(b, (candidate){p->count, b->touched[i]})) return false;
    }
    b->n_touched = 0;
    return true;
}

/* Words in order, as symbols: the numbers of their bytes; and their pairs. */
static bool count_pairs(weft_bpe_trainer *b, const weft_tokenizer *t) {
    const weft_tokenizer *texts = b->texts;
    if (texts->vocab)
        qsort_r(b->words, (size_t)texts->vocab, sizeof *b->words, compare_words, texts->pool);
    b->symbols = malloc((texts->pool_used + 1) * sizeof *b->symbols);
    if (!b->symbols) return false;
    for (int32_t i = 0; i < (int32_t)texts->vocab; i++) {
        word *w = &b->words[i];
        int32_t *s = b->symbols + w->at;
        w->length = w->bytes;
        for (int32_t k = 0; k < w->length; k++)
            s[k] = t->byte_token[(uint8_t)texts->pool[w->at + k]];
        for (int32_t k = 0; k + 1 < w->length; k++)
            if (!more_of(b, s[k], s[k + 1], i, w->count)) return false;
    }
    return push_touched(b);
}

/* Joins a pair in one word. What stands to the left is new already, what to the right still old:
 * each neighbour's count is then right when its turn is over. */
static bool join_in_word(weft_bpe_trainer *b, int32_t in, int32_t left, int32_t right,
                         int32_t made) {
    word *w = &b->words[in];
    int32_t *s = b->symbols + w->at, to = 0;
    for (int32_t i = 0; i < w->length; to++) {
        if (s[i] != left || i + 1 == w->length || s[i + 1] != right) {
            s[to] = s[i++];
            continue;
        }
        if (to > 0 &&
            !(fewer_of(b, s[to - 1], left, w->count) && more_of(b, s[to - 1], made, in, w->count)))
            return false;
        if (i + 2 < w->length &&
            !(fewer_of(b, right, s[i + 2], w->count) && more_of(b, made, s[i + 2], in, w->count)))
            return false;
        s[to] = made;
        i += 2;
    }
    w->length = to;
    return true;
}

static bool join_pair(weft_bpe_trainer *b, int32_t which, int32_t made) {
    uint64_t key = b->pairs[which].key;
    int32_t *words = b->pairs[which].words, n = b->pairs[which].n_words;
    bool ok = true;
    b->pairs[which].words = NULL; /* the table may move meanwhile */
    b->pairs[which].n_words = 0;
    b->pairs[which].room = 0;
    for (int32_t i = 0; i < n && ok; i++)
        ok = join_in_word(b, words[i], (int32_t)(key >> 32), (int32_t)(key & 0xFFFFFFFF), made);
    free(words);
    b->pairs[which].count = 0;
    return ok && push_touched(b);
}

/* The token that a pair makes. Another pair may have made the same bytes before. */
static weft_status make_token(weft_tokenizer *t, uint64_t key, int32_t *made) {
    int32_t left = (int32_t)(key >> 32), right = (int32_t)(key & 0xFFFFFFFF);
    int64_t l = t->length[left], r = t->length[right];
    WEFT_AUTO_FREE char *bytes = malloc((size_t)(l + r));
    if (!bytes) return no_memory();
    memcpy(bytes, t->pool + t->offset[left], (size_t)l);
    memcpy(bytes + l, t->pool + t->offset[right], (size_t)r);
    *made = weft_tokenizer_find(t, bytes, l + r);
    if (*made >= 0) return WEFT_OK;
    *made = (int32_t)t->vocab;
    return weft_tokenizer_add_token(t, *made, bytes, l + r, true);
}

weft_status weft_bpe_trainer_run(weft_bpe_trainer *b, int64_t vocab, int64_t least,
                                 weft_progress *progress, weft_tokenizer **out) {
    static const char end[] = "<|endoftext|>";
    *out = NULL;
    if (vocab < WEFT_BPE_VOCAB_MIN || vocab > TOKENIZER_VOCAB_MAX)
        return WEFT_BAD_INPUT("a vocabulary has from %d to %d tokens, not %lld", WEFT_BPE_VOCAB_MIN,
                              TOKENIZER_VOCAB_MAX, (long long)vocab);
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    int32_t made = -1;
    WEFT_TRY(weft_tokenizer_new("trained", &t));
    WEFT_TRY(weft_tokenizer_number_bytes(t));
    if (!count_pairs(b, t)) return no_memory();
    while (t->vocab < vocab - 1 && b->n_heap > 0) {
        candidate top = heap_pop(b);
        int64_t count = b->pairs[top.pair].count;
        if (count != top.count) {
            if (count > 0 && !heap_push(b, (candidate){count, top.pair})) return no_memory();
            continue;
        }
        if (count < least) break;
        uint64_t key = b->pairs[top.pair].key;
        WEFT_TRY(make_token(t, key, &made));
        if (!weft_grow_list(&b->merges, &b->merges_room, b->n_merges + 1, sizeof *b->merges))
            return no_memory();
        b->merges[b->n_merges++] = key;
        if (!join_pair(b, top.pair, made)) return no_memory();
        weft_progress_update(progress, t->vocab, NULL);
    }
    WEFT_TRY(weft_tokenizer_reserve_merges(t, b->n_merges));
    for (int64_t i = 0; i < b->n_merges; i++) {
        uint64_t key = b->merges[i];
        WEFT_TRY(make_token(t, key, &made)); /* there already */
        weft_tokenizer_add_merge(t, (int32_t)(key >> 32), (int32_t)(key & 0xFFFFFFFF), made);
    }
    int32_t id = (int32_t)t->vocab;
    WEFT_TRY(weft_tokenizer_add_token(t, id, end, sizeof end - 1, false));
    WEFT_TRY(weft_tokenizer_add_special(t, end, id, true));
    t->n_steps = 1;
    WEFT_TRY(weft_tokenizer_finish(t));
    return weft_hand(&t, out);
}
