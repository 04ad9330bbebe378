/* One batch with everything that can be written of it, or a long shard window by window. */
#include "model/evaluate.h"

#include "core/safetensors.h"
#include "data/tokens.h"

typedef struct {
    int64_t batch, time;
    int32_t *tokens, *targets; /* [B, T] */
} token_batch;

static void batch_free(token_batch *b) {
    WEFT_FREE(b->tokens, b->targets);
}

/* Row by row of [B, T+1]: inputs, and the tokens that follow them. */
static weft_status batch_take(token_batch *b, int64_t batch, int64_t time, const int32_t *rows,
                              int64_t stride) {
    size_t count = (size_t)(batch * time), bytes = (size_t)time * sizeof *rows;
    *b = (token_batch){batch, time, calloc(count, sizeof *rows), calloc(count, sizeof *rows)};
    if (!b->tokens || !b->targets) return weft_fail(WEFT_ENOMEM, "eval: no memory for the tokens");
    for (int64_t i = 0; i < batch; i++) {
        memcpy(b->tokens + i * time, rows + i * stride, bytes);
        memcpy(b->targets + i * time, rows + i * stride + 1, bytes);
    }
    return WEFT_OK;
}

/* Tensors to be written, and room for their names. */
typedef struct {
    int64_t n;
    weft_safetensor *list;
    char (*names)[48];
} tensor_file;

static void end_file(tensor_file *f) {
    for (int64_t i = 0; f->list && i < f->n; i++)
        free((void *)(uintptr_t)f->list[i].data);
    WEFT_FREE(f->list, f->names);
}

/* f64, or f32 whatever the model computes in. */
static weft_status write_logits(const weft_session *s, const char *path) {
    const weft_tensor *logits = s->graph.logits;
    int64_t count = weft_tensor_count(logits);
    bool wide = logits->dtype == WEFT_F64;
    WEFT_AUTO_FREE void *data = malloc((size_t)weft_tensor_bytes(logits));
    WEFT_AUTO_FREE float *floats = wide ? NULL : malloc((size_t)count * sizeof *floats);
    if (!data || (!wide && !floats))
        return weft_fail(WEFT_ENOMEM, "eval: no memory to write the logits");
    weft_safetensor t = {.name = "logits",
                         .dtype = wide ? WEFT_FILE_F64 : WEFT_FILE_F32,
                         .ndim = logits->ndim,
                         .data = wide ? data : floats};
    memcpy(t.shape, logits->shape, sizeof logits->shape);
    WEFT_TRY(weft_exec_read(s->exec, logits, data));
    if (!wide)
        weft_weight_floats(&(weft_weight){.dtype = logits->dtype, .count = count, .data = data},
                           floats);
    return weft_safetensors_write(path, &t, 1, NULL, NULL);
}

/* Every tensor of the checkpoint has its gradient there: zeros where nothing depends on it. */
static weft_status write_grads(const weft_session *s, const char *path) {
    int64_t n = s->graph.n_parameters;
    WEFT_AUTO(end_file) tensor_file f = {.n = n, .list = calloc((size_t)n, sizeof *f.list)};
    if (!f.list) return weft_fail(WEFT_ENOMEM, "eval: no memory to write gradients");
    for (int64_t i = 0; i < n; i++) {
        const weft_tensor *p = s->graph.parameters[i].tensor, *t = p->grad ? p->grad : p;
        void *data = calloc(1, (size_t)weft_tensor_bytes(t));
        if (!data) return weft_fail(WEFT_ENOMEM, "eval: no memory to write gradients");
        f.list[i] = (weft_safetensor){
            .name = p->name, .dtype = weft_file_dtype_of(t->dtype), .ndim = t->ndim, .data = data};
        memcpy(f.list[i].shape, p->shape, sizeof p->shape);
        if (p->grad) WEFT_TRY(weft_exec_read(s->exec, t, data));
    }
    return weft_safetensors_write(path, f.list, n, NULL, NULL);
}

static weft_status write_scores(const weft_session *s, const char *path) {
    const weft_config *c = &s->model->config;
    int64_t b = s->graph.tokens->shape[0], time = s->graph.tokens->shape[1];
    int64_t count = b * c->n_head * time * time;
    WEFT_AUTO(end_file) tensor_file f = {.n = c->n_layer};
    f.list = calloc((size_t)f.n, sizeof *f.list);
    f.names = calloc((size_t)f.n, sizeof *f.names);
    for (int64_t i = 0; i < f.n; i++) {
        double *values = f.list && f.names ? malloc((size_t)count * sizeof *values) : NULL;
        if (!values) return weft_fail(WEFT_ENOMEM, "eval: no memory to write scores");
        snprintf(f.names[i], sizeof f.names[i], "h.%lld.attn.scores", (long long)i);
        f.list[i] = (weft_safetensor){.name = f.names[i],
                                      .dtype = WEFT_FILE_F64,
                                      .ndim = 4,
                                      .shape = {b, c->n_head, time, time},
                                      .data = values};
        WEFT_TRY(weft_session_scores(s, i, values));
    }
    return weft_safetensors_write(path, f.list, f.n, NULL, NULL);
}

static weft_status evaluate_batch(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                                  const weft_evaluation *what, const token_batch *b,
                                  weft_evaluated *out, weft_loss_parts *parts) {
    /* An end of text stands for no bytes. */
    const weft_tokenizer *t = what->tokenizer;
    for (int64_t i = 0; i < b->batch * b->time; i++) {
        int32_t bytes = 0;
        if (b->targets[i] < 0) continue;
        out->tokens++;
        if (t && b->targets[i] != weft_tokenizer_end(t))
            weft_tokenizer_token(t, b->targets[i], &bytes);
        out->bytes += bytes;
    }
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_model quiet = *m; /* the same weights; a gradient pass has no dropout */
    quiet.config.dropout = 0;
    weft_build build = {.batch = b->batch, .time = b->time, .dtype = m->dtype};
    build.train = what->grads != NULL;
    build.logits = what->logits != NULL;
    build.scores = what->scores != NULL;
    WEFT_TRY(weft_session_open(&quiet, backend, pool, &build, what->grads != NULL, false, &s));
    /* WsFFN's two views are drawn as in training. */
    weft_run run = {.seed = (uint64_t)m->config.seed};
    WEFT_TRY(weft_session_run(&s, b->tokens, b->targets, &run));
    WEFT_TRY(weft_session_losses(&s, parts));
    if (what->logits) WEFT_TRY(write_logits(&s, what->logits));
    if (what->grads) WEFT_TRY(write_grads(&s, what->grads));
    return what->scores ? write_scores(&s, what->scores) : WEFT_OK;
}

/* Windows of the block size, each starting on the last token of the one before; the last may be
 * shorter. A few windows a pass keep memory small however long the shard is. */
static weft_status evaluate_shard(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                                  const weft_evaluation *what, const weft_tokens *t,
                                  weft_evaluated *out) {
    if (what->logits || what->grads || what->scores || what->targets)
        return WEFT_BAD_INPUT("%s: logits, gradients, scores and targets go with one batch: "
                              "give a .npy of shape [B, T+1]",
                              what->text ? what->text : what->tokens);
    int64_t total = t->columns - 1, block = m->config.context, at = 0;
    while (at < total) {
        int64_t time = total - at < block ? total - at : block;
        int64_t batch = (total - at) / time;
        if (batch > m->config.batch_size) batch = m->config.batch_size;
        WEFT_AUTO(batch_free) token_batch b = {0};
        weft_loss_parts parts;
        WEFT_TRY(batch_take(&b, batch, time, t->values + at, time));
        WEFT_TRY(evaluate_batch(m, backend, pool, what, &b, out, &parts));
        weft_loss_parts_add(&out->parts, &parts, (double)(batch * time) / (double)total);
        at += batch * time;
    }
    return WEFT_OK;
}

/* A text as a shard has it: the token before it that begins a text or ends the one before, where there is
 * one. */
static weft_status read_text(const weft_evaluation *what, weft_tokens *out) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    WEFT_AUTO(weft_encoder_close_at) weft_encoder *e = NULL;
    const int32_t *tokens;
    int64_t count = 0;
    int32_t begin = weft_tokenizer_first(what->tokenizer);
    *out = (weft_tokens){0};
    WEFT_TRY(weft_file_read(what->text, WEFT_ENCODE_MAX, &text, &bytes));
    WEFT_TRY(weft_encoder_open(what->tokenizer, &e));
    WEFT_TRY(weft_encode(e, text, bytes, false, &tokens, &count));
    int64_t before = begin >= 0;
    int32_t *values = malloc((size_t)(count + before + 1) * sizeof *values);
    if (!values) return weft_no_memory(what->text);
    if (before) values[0] = begin;
    if (count) memcpy(values + before, tokens, (size_t)count * sizeof *values);
    *out = (weft_tokens){.rows = 1, .columns = count + before, .shard = true, .values = values};
    return WEFT_OK;
}

weft_status weft_evaluate(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                          const weft_evaluation *what, weft_evaluated *out) {
    WEFT_AUTO(weft_tokens_free) weft_tokens t = {0};
    WEFT_AUTO(batch_free) token_batch b = {0};
    *out = (weft_evaluated){0};
    WEFT_TRY(what->text ? read_text(what, &t) : weft_tokens_read(what->tokens, &t));
    if (t.columns < 2)
        return WEFT_BAD_INPUT("%s: two tokens are the least: one to read, one to tell",
                              what->text ? what->text : what->tokens);
    if (t.shard) return evaluate_shard(m, backend, pool, what, &t, out);
    WEFT_TRY(batch_take(&b, t.rows, t.columns - 1, t.values, t.columns));
    if (what->targets) {
        WEFT_AUTO(weft_tokens_free) weft_tokens wanted = {0};
        WEFT_TRY(weft_tokens_read(what->targets, &wanted));
        if (wanted.shard || wanted.rows != b.batch || wanted.columns != b.time)
            return WEFT_BAD_INPUT(
                "%s: targets are [%lld, %lld], but the tokens ask for [%lld, %lld]", what->targets,
                (long long)wanted.rows, (long long)wanted.columns, (long long)b.batch,
                (long long)b.time);
        memcpy(b.targets, wanted.values,
               (size_t)(wanted.rows * wanted.columns) * sizeof *wanted.values);
    }
    return evaluate_batch(m, backend, pool, what, &b, out, &out->parts);
}
