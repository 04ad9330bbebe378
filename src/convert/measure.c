/* Models on a text, a window at a time, so that memory stays small. */
#include "convert/measure.h"

#include "base/random.h"
#include "data/tokens.h"

#include <math.h>

enum { FILE_MOST = 1 << 28, COMPARED_WINDOWS = 2, COMPARED_TOKENS = 128 };

static weft_status cut(const int32_t *tokens, int64_t count, const char *path, int64_t time,
                       int64_t most, weft_windows *out) {
    if (count > most) count = most;
    if (count < 2)
        return WEFT_BAD_INPUT("%s: two tokens are the least: one to read, one to tell", path);
    out->time = time < count - 1 ? time : count - 1;
    out->windows = count / (out->time + 1);
    size_t bytes = (size_t)(out->windows * (out->time + 1)) * sizeof *out->tokens;
    WEFT_ROOM_AT(out->tokens, out->windows * (out->time + 1), "convert: no memory");
    memcpy(out->tokens, tokens, bytes);
    return WEFT_OK;
}

weft_status weft_windows_read(const char *path, const weft_tokenizer *t, int64_t time, int64_t most,
                              weft_windows *out) {
    WEFT_AUTO_FREE char *text = NULL;
    WEFT_AUTO(weft_encoder_close_at) weft_encoder *e = NULL;
    size_t bytes;
    const int32_t *tokens;
    int64_t count;
    *out = (weft_windows){0};
    WEFT_TRY(weft_encoder_open(t, &e));
    WEFT_TRY(weft_file_read(path, FILE_MOST, &text, &bytes));
    WEFT_TRY(weft_encode(e, text, bytes, false, &tokens, &count));
    return cut(tokens, count, path, time, most, out);
}

weft_status weft_windows_tokens(const char *path, int64_t time, int64_t windows,
                                weft_windows *out) {
    WEFT_AUTO(weft_tokens_free) weft_tokens t = {0};
    *out = (weft_windows){0};
    WEFT_TRY(weft_tokens_read(path, &t));
    if (!t.shard && t.columns > 1) time = t.columns - 1;
    return cut(t.values, t.rows * t.columns, path, time, windows * (time + 1), out);
}

weft_status weft_windows_random(int64_t vocab, int64_t time, int64_t windows, weft_windows *out) {
    int64_t count = windows * (time + 1);
    *out = (weft_windows){.windows = windows, .time = time};
    WEFT_ROOM(double, u, count, "convert: no memory");
    WEFT_ROOM_AT(out->tokens, count, "convert: no memory");
    weft_random_uniform(1, 0, weft_random_site("convert"), 0, count, u);
    for (int64_t i = 0; i < count; i++)
        out->tokens[i] = (int32_t)(u[i] * (double)vocab);
    return WEFT_OK;
}

void weft_windows_free(weft_windows *text) {
    free(text->tokens);
    *text = (weft_windows){0};
}

static weft_status open_session(const weft_model *m, weft_backing place, int64_t time,
                                const weft_build *what, weft_session *s) {
    weft_build build = *what;
    build.batch = 1;
    build.time = time;
    build.dtype = m->dtype;
    return weft_session_open(m, place.backend, place.pool, &build, false, false, s);
}

static weft_status run_window(weft_session *s, const weft_windows *text, int64_t window) {
    const int32_t *tokens = text->tokens + window * (text->time + 1);
    return weft_session_run(s, tokens, tokens + 1, NULL);
}

weft_status weft_windows_loss(const weft_model *m, weft_backing place, const weft_windows *text,
                              double *loss) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_loss_parts parts;
    *loss = 0;
    WEFT_TRY(open_session(m, place, text->time, &(weft_build){.batch = 1}, &s));
    for (int64_t i = 0; i < text->windows; i++) {
        WEFT_TRY(run_window(&s, text, i));
        WEFT_TRY(weft_session_losses(&s, &parts));
        *loss += parts.cross_entropy / (double)text->windows;
    }
    return WEFT_OK;
}

weft_status weft_windows_moments(const weft_model *m, weft_backing place, const weft_windows *text,
                                 double **moments) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    int64_t count = m->config.n_embd * m->config.n_embd;
    double share = 1 / (double)(text->windows * text->time);
    *moments = NULL;
    WEFT_ROOM(double, values, count, "convert: no memory");
    WEFT_ROOM(double, sums, (m->config.n_layer * count), "convert: no memory");
    WEFT_TRY(open_session(m, place, text->time, &(weft_build){.moments = true}, &s));
    for (int64_t w = 0; w < text->windows; w++) {
        WEFT_TRY(run_window(&s, text, w));
        for (int64_t l = 0; l < m->config.n_layer; l++) {
            WEFT_TRY(weft_session_values(&s, s.graph.moments[l], count, values));
            for (int64_t i = 0; i < count; i++)
                sums[l * count + i] += share * values[i];
        }
    }
    return weft_hand(&sums, moments);
}

/* The mean over rows of half the sum of differences; scores [rows, time, time], causal. */
static double weights_apart(double *a, double *b, int64_t heads, int64_t time) {
    double apart = 0;
    for (int64_t r = 0; r < heads * time; r++) {
        int64_t seen = r % time + 1;
        weft_scores_softmax(a + r * time, seen);
        weft_scores_softmax(b + r * time, seen);
        for (int64_t j = 0; j < seen; j++)
            apart += 0.5 * fabs(a[r * time + j] - b[r * time + j]);
    }
    return apart / (double)(heads * time);
}

weft_status weft_windows_apart(const weft_model *a, const weft_model *b, weft_backing place,
                               const weft_windows *text, double *apart) {
    const weft_config *c = &a->config;
    int64_t time = text->time < COMPARED_TOKENS ? text->time : COMPARED_TOKENS;
    int64_t windows = text->windows < COMPARED_WINDOWS ? text->windows : COMPARED_WINDOWS;
    int64_t count = c->n_head * time * time;
    WEFT_ROOM(double, scores, 2 * count, "convert: no memory");
    WEFT_AUTO(weft_session_close) weft_session first = {0}, second = {0};
    memset(apart, 0, (size_t)c->n_layer * sizeof *apart);
    weft_build build = {.scores = true};
    WEFT_TRY(open_session(a, place, time, &build, &first));
    WEFT_TRY(open_session(b, place, time, &build, &second));
    for (int64_t window = 0; window < windows; window++) {
        WEFT_TRY(run_window(&first, text, window));
        WEFT_TRY(run_window(&second, text, window));
        for (int64_t l = 0; l < c->n_layer; l++) {
            WEFT_TRY(weft_session_scores(&first, l, scores));
            WEFT_TRY(weft_session_scores(&second, l, scores + count));
            apart[l] += weights_apart(scores, scores + count, c->n_head, time);
        }
    }
    for (int64_t l = 0; l < c->n_layer; l++)
        apart[l] /= (double)windows;
    return WEFT_OK;
}
