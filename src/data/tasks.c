/* The tasks: tasks.h says what they ask. */
#include "data/tasks.h"

#include "data/corpus.h"

weft_sheet weft_sheet_open(const char *task, const weft_sequence_place *p, int64_t time,
                           int32_t *tokens, int32_t *targets, uint8_t *scored) {
    char train[64], val[64];
    snprintf(train, sizeof train, "data.%s.train", task);
    snprintf(val, sizeof val, "data.%s.val", task);
    memset(targets, -1, (size_t)time * sizeof *targets);
    if (scored) memset(scored, 0, (size_t)time);
    weft_random_stream random = weft_random_stream_at(p, train, val, 0);
    return (weft_sheet){p, random, 0, time, tokens, targets, scored};
}

/* The next token, and what is asked for there; -1: nothing is. Behind the end nothing is written. */
static void put_token(weft_sheet *s, int32_t token, int32_t target) {
    if (s->at >= s->time) return;
    s->tokens[s->at] = token;
    s->targets[s->at] = target;
    if (s->scored) s->scored[s->at] = target >= 0;
    s->at++;
}

/* One of n numbers from `first` on. */
static int32_t draw(weft_sheet *s, int64_t first, int64_t n) {
    return (int32_t)(first + weft_random_stream_below(&s->random, (uint32_t)n));
}

/* Whether the next of `left` places is one of those that `wanted` things take, each choice of places as likely. */
static bool takes_place(weft_sheet *s, int64_t wanted, int64_t left) {
    return weft_random_stream_below(&s->random, (uint32_t)left) < wanted;
}

/* Associative recall: what followed this token the last time? The half is drawn once into the
 * tokens and copied from there, so no memory is needed. */
weft_status weft_recall_fill(const weft_task_shape *k, weft_sheet *s) {
    int64_t half = s->time / 2 > 1 ? s->time / 2 : 1;
    for (int64_t t = 0; t < s->time; t++)
        s->tokens[t] = t < half ? draw(s, 0, k->vocab) : s->tokens[t - half];
    for (int64_t t = 0; t < s->time; t++) {
        s->targets[t] = s->tokens[(t + 1) % half];
        if (s->scored) s->scored[t] = t >= half;
    }
    return WEFT_OK;
}

/* Entailment in a random tree. Nodes are numbered in the order they join the tree, so a parent has
 * a lower number than its child, and the ancestors of a node are one mask of 32 bits: its parent's
 * and its parent. Labels and the order of the edges are drawn apart, so the numbers do not show. */
enum { NODES_MAX = 32, EDGE_TOKENS = 3 };

typedef struct {
    uint32_t count;
    uint32_t parent[NODES_MAX];
    uint32_t above[NODES_MAX]; /* bit b: node b is an ancestor */
    int32_t label[NODES_MAX];
    uint32_t order[NODES_MAX]; /* of the edges, each named by its child */
} tree;

/* A pair of different nodes of which b is, or is not, an ancestor of a: drawn until one is found.
 * There is always one of each kind, the root with any other node, and they are not rare. */
static void draw_pair(weft_random_stream *random, const tree *t, bool yes, uint32_t *a,
                      uint32_t *b) {
    do {
        *a = weft_random_stream_below(random, t->count);
        *b = weft_random_stream_below(random, t->count);
    } while (*a == *b || (t->above[*a] >> *b & 1) != yes);
}

weft_status weft_entailment_fill(const weft_task_shape *k, weft_sheet *s) {
    (void)k;
    if (s->time < WEFT_ENTAILMENT_TIME)
        return WEFT_BAD_INPUT(
            "DATASET entailment: a sequence has at least %d tokens, and CONTEXT is %lld",
            WEFT_ENTAILMENT_TIME, (long long)s->time);
    /* About half of the sequence is the tree's, yet a query fits behind it. */
    int64_t nodes = 1 + s->time / 2 / EDGE_TOKENS;
    tree t = {.count = (uint32_t)(nodes < 2 ? 2 : nodes > NODES_MAX ? NODES_MAX : nodes)};
    for (uint32_t i = 1; i < t.count; i++) {
        t.parent[i] = weft_random_stream_below(&s->random, i);
        t.above[i] = t.above[t.parent[i]] | 1u << t.parent[i];
        uint32_t to = weft_random_stream_below(&s->random, i);
        t.order[i - 1] = t.order[to];
        t.order[to] = i;
    }
    /* Distinct labels, the first `count` of a shuffle. */
    int32_t labels[WEFT_ENTAILMENT_LABELS];
    for (int32_t i = 0; i < WEFT_ENTAILMENT_LABELS; i++)
        labels[i] = WEFT_ENTAILMENT_LABEL + i;
    for (uint32_t i = 0; i < t.count; i++) {
        int32_t from = draw(s, i, WEFT_ENTAILMENT_LABELS - i);
        t.label[i] = labels[from];
        labels[from] = labels[i];
    }
    for (uint32_t i = 0; i + 1 < t.count; i++) {
        put_token(s, WEFT_ENTAILMENT_EDGE, -1);
        put_token(s, t.label[t.order[i]], -1);
        put_token(s, t.label[t.parent[t.order[i]]], -1);
    }
    while (s->at < s->time) {
        uint32_t kind = weft_random_stream_below(&s->random, 4), a, b;
        int32_t answer = kind >= 2 ? WEFT_ENTAILMENT_YES : WEFT_ENTAILMENT_NO;
        if (kind == 0)
            draw_pair(&s->random, &t, true, &b, &a);
        else
            draw_pair(&s->random, &t, kind >= 2, &a, &b);
        put_token(s, WEFT_ENTAILMENT_QUERY, -1);
        put_token(s, t.label[a], -1);
        put_token(s, t.label[b], answer);
        put_token(s, answer, -1);
    }
    return WEFT_OK;
}

/* A needle in a haystack: a pass key somewhere in a text, and a question for it at the end.
 *
 * The sequence ends with the key's last digit as its last target, so that a model which has read it all
 * but the answer's first byte can tell the answer. */
int weft_needle_write(int32_t key, char needle[WEFT_NEEDLE_ROOM]) {
    return snprintf(needle, WEFT_NEEDLE_ROOM,
                    "\nThe pass key is %05d. Remember it. %05d is the pass key.\n", (int)key,
                    (int)key);
}

const char weft_needle_question[] = "\nWhat is the pass key? The pass key is";

int weft_needle_answer(int32_t key, char answer[WEFT_NEEDLE_ROOM]) {
    return snprintf(answer, WEFT_NEEDLE_ROOM, " %05d", (int)key);
}

/* tokens and targets are a text of time + 1 bytes, one apart; writes a piece of it at `at`. */
static void put(weft_sheet *s, const char *piece, int64_t bytes, int64_t at) {
    for (int64_t i = 0; i < bytes; i++) {
        if (at + i < s->time) s->tokens[at + i] = (unsigned char)piece[i];
        if (at + i > 0) s->targets[at + i - 1] = (unsigned char)piece[i];
    }
}

weft_status weft_needle_fill(const weft_task_shape *k, weft_sheet *s) {
    (void)k;
    char needle[WEFT_NEEDLE_ROOM], answer[WEFT_NEEDLE_ROOM];
    int32_t key = draw(s, 0, WEFT_NEEDLE_KEYS);
    int64_t long_needle = weft_needle_write(key, needle);
    int64_t long_answer = weft_needle_answer(key, answer);
    int64_t long_question = (int64_t)strlen(weft_needle_question), end = s->time + 1;
    if (s->time < WEFT_NEEDLE_TIME)
        return WEFT_BAD_INPUT("DATASET needle: a sequence has a key, a question and its answer, at "
                              "least %d bytes; CONTEXT gives %lld",
                              WEFT_NEEDLE_TIME, (long long)s->time);
    weft_corpus_fill(s->place, s->time, s->tokens, s->targets);
    put(s, needle, long_needle, draw(s, 0, end - long_needle - long_question - long_answer + 1));
    put(s, weft_needle_question, long_question, end - long_answer - long_question);
    put(s, answer, long_answer, end - long_answer);
    /* The blank before the digits is no part of what must be remembered. */
    for (int64_t t = 0; s->scored && t < s->time; t++)
        s->scored[t] = t >= s->time - (long_answer - 1);
    return WEFT_OK;
}

/* Distinct keys below `keys`, the first n of a shuffle, each with a value of as many from `first` on. */
typedef struct {
    int32_t key[WEFT_TASK_VOCAB], value[WEFT_TASK_VOCAB];
} pairs;

static void draw_pairs(weft_sheet *s, int64_t n, int64_t keys, int64_t first, pairs *p) {
    for (int64_t i = 0; i < keys; i++)
        p->key[i] = (int32_t)i;
    for (int64_t i = 0; i < n; i++) {
        int32_t from = draw(s, i, keys - i), key = p->key[from];
        p->key[from] = p->key[i];
        p->key[i] = key;
        p->value[i] = draw(s, first, keys);
    }
}

weft_status weft_mqar_fill(const weft_task_shape *k, weft_sheet *s) {
    int64_t half = k->vocab / 2, places = (s->time - 2 * k->size + 1) / 2;
    int64_t asked = places < k->size ? places : k->size;
    pairs of;
    draw_pairs(s, k->size, half, half, &of);
    for (int64_t i = 0; i < k->size; i++) {
        put_token(s, of.key[i], -1);
        put_token(s, of.value[i], -1);
    }
    for (int64_t i = 0; s->at < s->time; places--) {
        bool asks = takes_place(s, asked - i, places);
        int32_t key = draw(s, half, half), value = draw(s, half, half);
        if (asks) { /* the next of a shuffle */
            int32_t from = draw(s, i, k->size - i);
            key = of.key[from];
            value = of.value[from];
            of.key[from] = of.key[i];
            of.value[from] = of.value[i++];
        }
        put_token(s, key, asks ? value : -1);
        put_token(s, value, -1);
    }
    return WEFT_OK;
}

weft_status weft_induction_fill(const weft_task_shape *k, weft_sheet *s) {
    int64_t third = k->vocab / 3;
    pairs of;
    bool seen[WEFT_TASK_VOCAB] = {false};
    int32_t i = 0;
    draw_pairs(s, k->size, third, third, &of);
    while (s->at + 1 < s->time) {
        double unit = weft_random_unit(weft_random_stream_word(&s->random));
        if (s->at > 0 && (unit < k->noise || s->at + 2 == s->time)) {
            put_token(s, draw(s, 2 * third, k->vocab - 2 * third), -1);
            continue;
        }
        i = draw(s, 0, k->size);
        put_token(s, of.key[i], seen[i] ? of.value[i] : -1);
        put_token(s, of.value[i], -1);
        seen[i] = true;
    }
    while (!seen[i = draw(s, 0, k->size)]) {
    }
    put_token(s, of.key[i], of.value[i]);
    return WEFT_OK;
}

weft_status weft_copying_fill(const weft_task_shape *k, weft_sheet *s) {
    enum { BLANK, MARK, LETTER };
    int64_t n = 0, places = s->time - k->size;
    while (s->at < places) {
        bool letter = takes_place(s, k->size - n, places - s->at);
        put_token(s, letter ? draw(s, LETTER, k->vocab - LETTER) : BLANK, -1);
        n += letter;
    }
    for (int64_t t = 0; t < places; t++)
        if (s->tokens[t] != BLANK) put_token(s, MARK, s->tokens[t]);
    return WEFT_OK;
}

weft_status weft_compression_fill(const weft_task_shape *k, weft_sheet *s) {
    int64_t letters = k->vocab - 1 - k->size;
    for (int64_t i = 0; i < k->size; i++)
        put_token(s, draw(s, 0, letters), -1);
    put_token(s, (int32_t)letters, -1);
    while (s->at < s->time) {
        int32_t place = draw(s, 0, k->size);
        put_token(s, (int32_t)letters + 1 + place, s->tokens[place]);
    }
    return WEFT_OK;
}
