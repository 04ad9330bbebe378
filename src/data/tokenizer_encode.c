/* Encoding. A text is taken apart from the outside in: tokens that stand in it by name, runs of
 * valid UTF-8, the pieces of each splitting step; each piece is then merged from its bytes up, the
 * pair of least rank first and of equal ones the leftmost; or, with Unigram, cut where the scores add up to most.
 *
 * Most pieces are words met before, so an encoder keeps them: a table of one cache line a word, two
 * places for each hash, the newer one in front. Merging proper is a scan over the pairs for short
 * pieces, and a heap of pairs over a linked list for long ones, so that no text takes quadratic
 * time. */
#include "base/text.h"
#include "data/tokenizer_internal.h"

enum {
    WORD_BYTES = 30, /* of a word that is kept */
    WORD_TOKENS = 8,
    WORD_SETS = 1 << 14, /* two words each: 2 MiB */
    SHORT_PIECE = 64,    /* bytes: above, the heap pays */
    RAW_PIECE = 256,     /* bytes that are no UTF-8, merged together at most */
    JIT_STACK_START = 32 * 1024,
    JIT_STACK_MAX = 8 * 1024 * 1024,
    STEPS_FEW = 10 * 1000, /* of a match, at first */
    STEPS_MANY = 10 * 1000 * 1000,
    TRY_BYTES = 4096, /* of a text, for each second try */
    TRIES_LEAST = 16,
    HEAP_KIB = 64 * 1024 /* of a match without the compiler of PCRE2 */
};

typedef struct {
    uint8_t bytes, tokens; /* 0 tokens: empty */
    char word[WORD_BYTES]; /* zeros behind */
    int32_t token[WORD_TOKENS];
} kept_word;

struct weft_encoder {
    const weft_tokenizer *t;
    void *memory;
    kept_word *words; /* [WORD_SETS][2], in memory from a multiple of 64 on */
    int32_t *out;
    int64_t n, room;
    /* Merging of long pieces, one entry per byte. */
    int32_t *id, *next, *before;
    uint64_t *heap; /* rank << 32 | place; two a byte, since a merge makes two new pairs */
    int64_t heap_n, long_room;
    double *score; /* of the best way up to each place */
    pcre2_match_data *match[TOKENIZER_STEPS_MAX];
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
    int64_t tries_left; /* second tries of patterns on this text */
};

static weft_status no_memory(const weft_encoder *e) {
    return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory to encode with", e->t->name);
}

weft_status weft_encoder_open(const weft_tokenizer *t, weft_encoder **out) {
    *out = NULL;
    WEFT_NEW(weft_encoder, e, weft_encoder_close, "tokenizer %s: no memory to encode with",
             t->name);
    e->t = t;
    bool ok = true, patterns = false;
    if (!t->bytes_only) {
        /* calloc's pages cost nothing until a word is kept in them. */
        e->memory = calloc(2 * WORD_SETS + 1, sizeof *e->words);
        ok = e->memory != NULL;
        if (ok) e->words = (kept_word *)(((uintptr_t)e->memory + 63) / 64 * 64);
    }
    for (int i = 0; i < t->n_steps; i++) {
        if (!t->steps[i]) continue;
        patterns = true;
        e->match[i] = pcre2_match_data_create(1, NULL);
        ok = ok && e->match[i];
    }
    if (patterns) {
        e->context = pcre2_match_context_create(NULL);
        e->stack = pcre2_jit_stack_create(JIT_STACK_START, JIT_STACK_MAX, NULL);
        ok = ok && e->context;
        if (e->context && e->stack) pcre2_jit_stack_assign(e->context, NULL, e->stack);
        if (e->context) pcre2_set_depth_limit(e->context, STEPS_MANY);
        if (e->context) pcre2_set_heap_limit(e->context, HEAP_KIB);
    }
    if (!ok) return no_memory(e);
    return weft_hand(&e, out);
}

void weft_encoder_close(weft_encoder *e) {
    if (!e) return;
    for (int i = 0; i < TOKENIZER_STEPS_MAX; i++)
        pcre2_match_data_free(e->match[i]);
    pcre2_match_context_free(e->context);
    pcre2_jit_stack_free(e->stack);
    WEFT_FREE(e->memory, e->out, e->id, e->next, e->before, e->heap, e->score, e);
}

static bool reserve_tokens(weft_encoder *e, size_t more) {
    return weft_grow_list(&e->out, &e->room, e->n + (int64_t)more, sizeof *e->out);
}

/* The tokens that merging begins with: those of characters, where the tokenizer has such, or of bytes. */
static int64_t list_first(const weft_tokenizer *t, const char *piece, size_t bytes, int32_t *id) {
    int64_t n = 0;
    for (size_t i = 0; i < bytes;) {
        int length = t->characters ? weft_utf8_scan(piece + i, bytes - i) : 0;
        int32_t whole = length > 0 ? weft_tokenizer_find(t, piece + i, length) : -1;
        id[n++] = whole >= 0 ? whole : t->byte_token[(uint8_t)piece[i]];
        for (int k = 1; whole < 0 && k < length; k++)
            id[n++] = t->byte_token[(uint8_t)piece[i + (size_t)k]];
        i += length > 0 ? (size_t)length : 1;
    }
    return n;
}

/* Tokens of a piece of at most SHORT_PIECE bytes; returns how many. */
static int merge_short(const weft_tokenizer *t, const char *piece, size_t bytes, int32_t *id) {
    int32_t rank[SHORT_PIECE], made[SHORT_PIECE]; /* of the pair that starts here */
    int n = (int)list_first(t, piece, bytes, id);
    for (int i = 0; i + 1 < n; i++) {
        const weft_merge *m = weft_find_merge(t, id[i], id[i + 1]);
        rank[i] = m ? m->rank : INT32_MAX;
        made[i] = m ? m->made : 0;
    }
    while (n > 1) {
        int best = 0;
        for (int i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == INT32_MAX) break;
        id[best] = made[best];
        n--;
        for (int i = best + 1; i < n; i++) {
            id[i] = id[i + 1];
            rank[i - 1] = rank[i];
            made[i - 1] = made[i];
        }
        for (int i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const weft_merge *m = weft_find_merge(t, id[i], id[i + 1]);
            rank[i] = m ? m->rank : INT32_MAX;
            made[i] = m ? m->made : 0;
        }
    }
    return n;
}

static bool reserve_long(weft_encoder *e, int64_t n) {
    if (n <= e->long_room) return true;
    int64_t room = e->long_room ? e->long_room : 4096;
    while (room < n)
        room *= 2;
    WEFT_FREE(e->id, e->next, e->before, e->heap, e->score);
    e->id = malloc((size_t)room * sizeof *e->id);
    e->next = malloc((size_t)room * sizeof *e->next);
    e->before = malloc((size_t)room * sizeof *e->before);
    e->heap = malloc((size_t)room * 3 * sizeof *e->heap);
    e->score = malloc((size_t)room * sizeof *e->score);
    bool ok = e->id && e->next && e->before && e->heap && e->score;
    e->long_room = ok ? room : 0;
    return ok;
}

static void push_pair(weft_encoder *e, int32_t at) {
    if (at < 0 || e->next[at] < 0) return;
    const weft_merge *m = weft_find_merge(e->t, e->id[at], e->id[e->next[at]]);
    if (!m) return;
    uint64_t key = (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)at;
    int64_t place = e->heap_n++;
    for (; place > 0 && e->heap[(place - 1) / 2] > key; place = (place - 1) / 2)
        e->heap[place] = e->heap[(place - 1) / 2];
    e->heap[place] = key;
}

/* Appends the tokens of a long piece. A rank names its pair, so an entry of the heap is out of date
 * exactly when the pair at its place has another rank. */
static bool merge_long(weft_encoder *e, const char *piece, size_t bytes) {
    if (!reserve_long(e, (int64_t)bytes)) return false;
    int32_t n = (int32_t)list_first(e->t, piece, bytes, e->id);
    e->heap_n = 0;
    for (int32_t i = 0; i < n; i++) {
        e->next[i] = i + 1 < n ? i + 1 : -1;
        e->before[i] = i - 1;
    }
    for (int32_t i = 0; i < n; i++)
        push_pair(e, i);
    while (e->heap_n > 0) {
        uint64_t top = e->heap[0], last = e->heap[--e->heap_n];
        int64_t place = 0;
        for (int64_t child; (child = 2 * place + 1) < e->heap_n; place = child) {
            if (child + 1 < e->heap_n && e->heap[child + 1] < e->heap[child]) child++;
            if (e->heap[child] >= last) break;
            e->heap[place] = e->heap[child];
        }
        e->heap[place] = last;
        int32_t at = (int32_t)(top & 0xFFFFFFFF), right = e->id[at] < 0 ? -1 : e->next[at];
        if (right < 0) continue;
        const weft_merge *m = weft_find_merge(e->t, e->id[at], e->id[right]);
        if (!m || (uint64_t)(uint32_t)m->rank != top >> 32) continue;
        e->id[at] = m->made;
        e->id[right] = -1;
        e->next[at] = e->next[right];
        if (e->next[at] >= 0) e->before[e->next[at]] = at;
        push_pair(e, e->before[at]);
        push_pair(e, at);
    }
    for (int32_t at = 0; at >= 0; at = e->next[at])
        e->out[e->n++] = e->id[at];
    return true;
}

/* A way that ends at `end` with a token from `at` on; of equal ones the first that is found stays. */
static void offer(weft_encoder *e, size_t at, size_t end, int32_t id, double score) {
    score += e->score[at];
    if (e->before[end] >= 0 && score <= e->score[end]) return;
    e->before[end] = (int32_t)at;
    e->score[end] = score;
    e->id[end] = id;
}

/* The first of the sorted tokens lo .. hi - 1, which are alike before place `at`, that has `byte` or more there. */
static int64_t first_from(const weft_tokenizer *t, int64_t lo, int64_t hi, size_t at, int byte) {
    while (lo < hi) {
        int64_t middle = lo + (hi - lo) / 2;
        int32_t id = t->sorted[middle];
        bool longer = (size_t)t->length[id] > at;
        if (longer && (uint8_t)t->pool[t->offset[id] + (int64_t)at] >= byte)
            hi = middle;
        else
            lo = middle + 1;
    }
    return lo;
}

/* Every token that begins at `at`, and the character there where it is none; returns the character's length. */
static size_t offer_tokens(weft_encoder *e, const char *piece, size_t bytes, size_t at) {
    const weft_tokenizer *t = e->t;
    int length = weft_utf8_scan(piece + at, bytes - at);
    size_t first = length > 0 ? (size_t)length : 1;
    int64_t lo = 0, hi = t->n_sorted;
    bool single = false;
    for (size_t n = 0; at + n < bytes && lo < hi;) {
        int byte = (uint8_t)piece[at + n];
        lo = first_from(t, lo, hi, n, byte);
        hi = first_from(t, lo, hi, n, byte + 1);
        n++;
        if (lo == hi || (size_t)t->length[t->sorted[lo]] != n) continue;
        offer(e, at, at + n, t->sorted[lo], t->score[t->sorted[lo]]);
        single = single || n == first;
    }
    if (!single) offer(e, at, at + first, -1, t->unknown);
    return first;
}

/* Unigram: of all ways to write a piece as tokens, that of the highest score (Viterbi); a character that is no token is
 * written as its bytes, or a run of such as one unknown token. */
static bool find_likeliest(weft_encoder *e, const char *piece, size_t bytes) {
    if (!reserve_long(e, (int64_t)bytes + 1)) return false;
    for (size_t i = 0; i <= bytes; i++)
        e->before[i] = -1;
    e->score[0] = 0;
    for (size_t at = 0; at < bytes;)
        at += offer_tokens(e, piece, bytes, at);
    for (int32_t end = (int32_t)bytes; end > 0; end = e->before[end])
        e->next[e->before[end]] = end;
    int32_t unknown = e->t->unknown_token;
    int64_t first = e->n;
    for (int32_t at = 0; at < (int32_t)bytes; at = e->next[at]) {
        int32_t end = e->next[at], id = e->id[end] < 0 ? unknown : e->id[end];
        bool again = id >= 0 && id == unknown && e->n > first && e->out[e->n - 1] == id;
        if (id >= 0 && !again) e->out[e->n++] = id;
        for (int32_t i = at; id < 0 && i < end; i++)
            e->out[e->n++] = e->t->byte_token[(uint8_t)piece[i]];
    }
    return true;
}

static bool merge_piece(weft_encoder *e, const char *piece, size_t bytes) {
    if (e->t->score) return find_likeliest(e, piece, bytes);
    if (e->t->whole_words) {
        int32_t id = weft_tokenizer_find(e->t, piece, (int64_t)bytes);
        if (id >= 0) {
            e->out[e->n++] = id;
            return true;
        }
    }
    if (bytes > SHORT_PIECE) return merge_long(e, piece, bytes);
    e->n += merge_short(e->t, piece, bytes, e->out + e->n);
    return true;
}

static bool add_piece(weft_encoder *e, const char *piece, size_t bytes) {
    if (!reserve_tokens(e, bytes < SHORT_PIECE ? SHORT_PIECE : bytes)) return false;
    if (bytes > WORD_BYTES) return merge_piece(e, piece, bytes);
    uint64_t word[4] = {0};
    memcpy(word, piece, bytes);
    uint64_t h = weft_hash_mix(word[0] ^ bytes << 56) ^ word[1];
    h = weft_hash_mix(h * 0xD6E8FEB86659FD93ull ^ word[2]) ^ word[3];
    kept_word *set = e->words + 2 * (weft_hash_mix(h) & (WORD_SETS - 1)), *found = NULL;
    for (int i = 0; i < 2 && !found; i++)
        if (set[i].bytes == bytes && set[i].tokens && memcmp(set[i].word, word, WORD_BYTES) == 0)
            found = &set[i];
    if (found) {
        memcpy(e->out + e->n, found->token, sizeof found->token);
        e->n += found->tokens;
        return true;
    }
    int64_t start = e->n;
    if (!merge_piece(e, piece, bytes)) return false;
    if (e->n - start <= WORD_TOKENS) {
        set[1] = set[0];
        set[0].bytes = (uint8_t)bytes;
        set[0].tokens = (uint8_t)(e->n - start);
        memcpy(set[0].word, word, WORD_BYTES);
        memcpy(set[0].token, e->out + start, (size_t)(e->n - start) * sizeof *e->out);
    }
    return true;
}

/* One match. A pattern comes with a tokenizer, and one that tries very many ways must not hold the
 * program up for ever: a match has a limit of steps, memory and depth. Most need few steps; some, as
 * over a long run of blanks, need more, so a text may have a second try for every few thousand of its
 * bytes. A text's work is at most so many steps per byte whatever the pattern is. */
static int match_piece(weft_encoder *e, int step, const char *text, size_t bytes, size_t at) {
    const pcre2_code *pattern = e->t->steps[step];
    pcre2_set_match_limit(e->context, STEPS_FEW);
    int found = pcre2_match(pattern, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK,
                            e->match[step], e->context);
    if (found != PCRE2_ERROR_MATCHLIMIT || e->tries_left <= 0) return found;
    e->tries_left--;
    pcre2_set_match_limit(e->context, STEPS_MANY);
    return pcre2_match(pattern, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, e->match[step],
                       e->context);
}

/* From that step on. A pattern's pieces are the matches and what lies between them. An empty match cuts too. */
static weft_status split_text(weft_encoder *e, int step, const char *text, size_t bytes) {
    if (step == e->t->n_steps) return add_piece(e, text, bytes) ? WEFT_OK : no_memory(e);
    size_t from = 0, at = 0;
    while (!e->t->steps[step] && at < bytes) {
        size_t length = weft_gpt2_piece(text + at, bytes - at);
        WEFT_TRY(split_text(e, step + 1, text + at, length));
        from = at += length;
    }
    while (at < bytes) {
        int found = match_piece(e, step, text, bytes, at);
        if (found == PCRE2_ERROR_NOMATCH) break;
        if (found < 0) {
            PCRE2_UCHAR why[128];
            bool limit = found == PCRE2_ERROR_MATCHLIMIT || found == PCRE2_ERROR_DEPTHLIMIT ||
                         found == PCRE2_ERROR_HEAPLIMIT || found == PCRE2_ERROR_JIT_STACKLIMIT;
            pcre2_get_error_message(found, why, sizeof why);
            return tokenizer_refuse(e->t, "its pattern %s on this text: %s",
                                    limit ? "takes too many steps" : "fails", (char *)why);
        }
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(e->match[step]);
        size_t start = span[0], end = span[1];
        if (start > end || start < from)
            return tokenizer_refuse(e->t, "its pattern matches backwards");
        if (start > from) WEFT_TRY(split_text(e, step + 1, text + from, start - from));
        if (end > start) WEFT_TRY(split_text(e, step + 1, text + start, end - start));
        from = at = end;
        if (end == start) do
                at++;
            while (at < bytes && (text[at] & 0xC0) == 0x80);
    }
    return from < bytes ? split_text(e, step + 1, text + from, bytes - from) : WEFT_OK;
}

/* Text without any token's name in it; `first`: the text begins with it. */
static weft_status encode_plain(weft_encoder *e, const char *text, size_t bytes, bool first) {
    WEFT_AUTO_FREE char *spaced = NULL;
    if (e->t->characters && bytes) {
        spaced = malloc(bytes + 1);
        if (!spaced) return no_memory(e);
        spaced[0] = ' ';
        bytes = weft_spaces_from_marks(text, bytes, spaced + 1);
        bool missing = spaced[1] != ' ' && e->t->space != SPACE_NONE &&
                       (first || e->t->space != SPACE_MISSING_FIRST);
        bool before = missing || e->t->space == SPACE_ALWAYS;
        text = spaced + !before;
        bytes += before;
    }
    for (size_t at = 0; at < bytes;) {
        WEFT_AUTO_FREE char *composed = NULL; /* where the tokenizer wants that */
        size_t valid = weft_utf8_valid(text + at, bytes - at), length = valid, ascii = 0;
        while (ascii < valid && !(text[at + ascii] & 0x80))
            ascii++;
        if (e->t->nfc && ascii < valid)
            WEFT_TRY(weft_compose(text + at, valid, &composed, &length));
        if (valid) WEFT_TRY(split_text(e, 0, composed ? composed : text + at, length));
        at += valid;
        size_t raw = weft_utf8_invalid(text + at, bytes - at);
        for (size_t end = at + raw; at < end;) {
            size_t some = end - at < RAW_PIECE ? end - at : RAW_PIECE;
            if (!add_piece(e, text + at, some)) return no_memory(e);
            at += some;
        }
    }
    return WEFT_OK;
}

/* The longest named token at the start of the text; NULL if there is none. */
static const weft_added *find_added(const weft_tokenizer *t, const char *text, size_t bytes,
                                    bool specials) {
    const weft_added *best = NULL;
    for (const weft_added *a = t->added; a < t->added + t->n_added; a++) {
        if ((a->special && !specials) || (size_t)a->bytes > bytes) continue;
        if (best && best->bytes >= a->bytes) continue;
        if (memcmp(a->text, text, (size_t)a->bytes) == 0) best = a;
    }
    return best;
}

/* `first`: nothing comes before the text. */
static weft_status encode_text(weft_encoder *e, bool first, const char *text, size_t bytes,
                               bool specials) {
    const weft_tokenizer *t = e->t;
    if (t->bytes_only) {
        if (!reserve_tokens(e, bytes)) return no_memory(e);
        for (size_t i = 0; i < bytes; i++)
            e->out[i] = (uint8_t)text[i];
        e->n = (int64_t)bytes;
        return WEFT_OK;
    }
    size_t from = 0;
    if (specials || !weft_tokenizer_cuttable(t)) {
        for (size_t at = 0; at < bytes;) {
            const weft_added *a = t->added_starts[specials][(uint8_t)text[at]]
                                      ? find_added(t, text + at, bytes - at, specials)
                                      : NULL;
            if (!a) {
                at++;
                continue;
            }
            WEFT_TRY(encode_plain(e, text + from, at - from, first && from == 0));
            if (!reserve_tokens(e, 1)) return no_memory(e);
            e->out[e->n++] = a->id;
            from = at += (size_t)a->bytes;
        }
    }
    return encode_plain(e, text + from, bytes - from, first && from == 0);
}

/* `begin` is a token that comes before; -1: none. */
static weft_status encode_behind(weft_encoder *e, int32_t begin, bool first, const char *text,
                                 size_t bytes, bool specials, const int32_t **tokens,
                                 int64_t *count) {
    e->n = 0;
    e->tries_left = TRIES_LEAST + (int64_t)(bytes / TRY_BYTES);
    *tokens = NULL;
    *count = 0;
    if (bytes > WEFT_ENCODE_MAX)
        return tokenizer_refuse(e->t, "a text of %zu bytes; %d at most in one piece", bytes,
                                WEFT_ENCODE_MAX);
    if (begin >= 0) {
        if (!reserve_tokens(e, 1)) return no_memory(e);
        e->out[e->n++] = begin;
    }
    WEFT_TRY(encode_text(e, first, text, bytes, specials));
    *tokens = e->out;
    *count = e->n;
    return WEFT_OK;
}

weft_status weft_encode(weft_encoder *e, const char *text, size_t bytes, bool specials,
                        const int32_t **tokens, int64_t *count) {
    return encode_behind(e, -1, true, text, bytes, specials, tokens, count);
}

weft_status weft_encode_next(weft_encoder *e, bool first, const char *text, size_t bytes,
                             const int32_t **tokens, int64_t *count) {
    return encode_behind(e, -1, first, text, bytes, false, tokens, count);
}

weft_status weft_encode_text(weft_encoder *e, const char *text, size_t bytes,
                             const int32_t **tokens, int64_t *count) {
    return encode_behind(e, e->t->begin, true, text, bytes, false, tokens, count);
}
