/* From a text to a config.
 *
 * The vocabulary grows with the text: a token should occur often enough to be learned. The model is
 * the largest of a ladder of sizes that keeps two promises: the time allows a few tokens for each of
 * its parameters, and it has no more than a few parameters for each token of the text. Steps follow
 * from the time, up to a number of passes over the text after which little is left to learn.
 *
 * A model of one's own is trained by Muon, which learns most in its time; one that a study is to change, by
 * AdamW, which everything goes with. */
#include "cli/args.h"

#include "base/log.h"
#include "base/text.h"
#include "bench/tables.h"
#include "data/shards.h"
#include "data/texts.h"
#include "train/checkpoint.h"
#include "train/metrics.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>

enum {
    BYTES_ONLY = 200 * 1000, /* shorter texts are read byte by byte */
    BYTES_PER_TOKEN = 1000,  /* of text for each token of the vocabulary */
    VOCAB_MOST = 32768,
    BLOCK_LEAST = 16,
    PARAMETERS_PER_TOKEN = 4, /* at most, of the text */
    TOKENS_PER_PARAMETER = 4, /* at least, that the time allows */
    TOKENS_ENOUGH = 20,       /* for each parameter */
    PASSES_MOST = 40,
    STEPS_WANTED = 1000,
    STEPS_LEAST = 50,
    PROMPT_MOST = 24
};
static const double VAL_SHARE = 0.05;
static const double GPU_FLOPS = 1.5e14;      /* of a step, taken where there is a GPU */
static const double SMALL_FLOPS_LEAST = 1e9; /* where nothing could be measured */

typedef struct {
    int64_t layers, heads, width, block;
    double muon_rate, adamw_rate;
} rung;

static const rung ladder[] = {
    {2, 2, 64, 64, 8e-3, 4e-3},       {3, 4, 128, 128, 6e-3, 3e-3},
    {4, 4, 192, 128, 4e-3, 2e-3},     {6, 4, 256, 256, 4e-3, 2e-3},
    {6, 6, 384, 256, 4e-3, 1e-3},     {8, 8, 512, 256, 4e-3, 1e-3},
    {12, 12, 768, 512, 2.8e-3, 6e-4}, {24, 16, 1024, 1024, 2e-3, 4e-4},
};

typedef struct {
    const weft_backend *backend;
    int threads;
    bool compared;             /* a study is to change the model */
    int64_t vocab, train, val; /* tokens */
    double flops;              /* that may be spent */
    char prompt[PROMPT_MOST + 1];
} facts;

typedef struct {
    weft_config config;
    int64_t parameters;
    double flops_per_token;
    double tokens; /* that it is trained on, passes over the text included */
} choice;

static weft_status cost(const facts *f, const rung *r, choice *out) {
    weft_account a;
    weft_config_defaults(&out->config);
    out->config.n_layer = r->layers;
    out->config.n_head = r->heads;
    out->config.n_embd = r->width;
    out->config.vocab_size = (f->vocab + 63) / 64 * 64;
    out->config.context = r->block;
    while (out->config.context > BLOCK_LEAST && out->config.context + 1 > f->val)
        out->config.context /= 2;
    if (f->backend->remote) out->config.dtype = WEFT_CONFIG_BF16;
    if (!f->compared) out->config.optimizer = WEFT_OPTIMIZER_MUON;
    out->config.learning_rate = f->compared ? r->adamw_rate : r->muon_rate;
    out->config.min_lr = out->config.learning_rate / 10;
    WEFT_TRY(weft_config_set(&out->config, "POSITION", "rope", "--text"));
    WEFT_TRY(weft_account_make(&out->config, f->backend, f->threads, &a));
    out->parameters = a.parameters;
    out->flops_per_token = a.forward_flops + a.backward_flops;
    out->tokens = f->flops / out->flops_per_token;
    return WEFT_OK;
}

static int64_t at_least(int64_t value, int64_t least) {
    return value < least ? least : value;
}

void weft_own_text_intervals(weft_config *c) {
    c->warmup_steps = c->steps / 20;
    c->eval_interval = at_least(c->steps / 20, 1);
    c->checkpoint_interval = c->eval_interval;
    c->log_interval = at_least(c->steps / 200, 1);
    c->sample_interval = at_least(c->steps / 5, 1);
}

/* Shards of the texts in `data`; without any text the facts are those of the one that comes with weft, which
 * goes on for ever. */
static weft_status read_texts(const char *const *paths, int n, const char *data, weft_pool *pool,
                              facts *f) {
    f->vocab = 256;
    f->train = f->val = INT32_MAX;
    snprintf(f->prompt, sizeof f->prompt, "The ");
    if (n == 0) return WEFT_OK;
    /* The data's folder anew: what a cut-off attempt left there is weft's own. */
    WEFT_TRY(weft_folder_remove(data));
    WEFT_TRY(weft_folder_make_marked(data));
    /* The first words of a text that are plain letters, for samples to begin with. */
    char line[256];
    WEFT_AUTO_FCLOSE FILE *file = fopen(paths[0], "r");
    *f->prompt = '\0';
    while (file && !*f->prompt && fgets(line, sizeof line, file)) {
        size_t length = strcspn(line, "\r\n"), from = strspn(line, " \t"), cut = 0;
        if (length - from > PROMPT_MOST) length = from + PROMPT_MOST;
        for (size_t i = from; i <= length; i++) {
            char letter = i < length ? line[i] : '\0';
            bool plain = letter >= ' ' && letter <= '~' && letter != '"' && letter != '\\';
            if (i == length || letter == ' ') cut = i;
            if (!plain) break;
        }
        bool whole = cut > from && isalpha((unsigned char)line[from]);
        if (whole) snprintf(f->prompt, PROMPT_MOST + 1, "%.*s", (int)(cut - from), line + from);
    }
    weft_input_options input = {.paths = paths, .n_paths = n, .val_share = VAL_SHARE};
    weft_input_options whole = input;
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    weft_texts_sum sum;
    int64_t bytes = 0, one, words, vocab = 512;
    for (int i = 0; i < n; i++)
        if (weft_file_size(paths[i], &one) == WEFT_OK) bytes += one;
    /* A power of two, so that the same text gives the same vocabulary whatever is added to it. */
    while (vocab < VOCAB_MOST && 2 * vocab * BYTES_PER_TOKEN <= bytes)
        vocab *= 2;
    whole.cuttable = true;
    WEFT_TRY(bytes < BYTES_ONLY ? weft_tokenizer_open("bytes", &t)
                                : weft_texts_learn(&whole, vocab, 2, &t, &words));
    WEFT_TRY(weft_texts_tokenize(&input, t, pool, data, WEFT_SHARD_TOKENS, &sum));
    f->train = sum.tokens[0];
    f->val = sum.tokens[1];
    f->vocab = weft_tokenizer_vocab(t);
    if (f->val > BLOCK_LEAST && f->train > BLOCK_LEAST) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: %lld tokens are too little text: the twentieth that is held out, in "
                          "whole lines, must have more than %d tokens; give a longer text%s",
                          paths[0], (long long)(f->train + f->val), BLOCK_LEAST,
                          f->val == 0 ? ", with line ends" : "");
}

static weft_status choose(const char *const *paths, int n, const char *data, double minutes,
                          weft_pool *pool, facts *f, choice *h) {
    WEFT_TRY(read_texts(paths, n, data, pool, f));
    double peak =
        f->backend->remote ? GPU_FLOPS : BENCH_TRAINING_SHARE * bench_peak_flops(pool, false);
    f->flops = 60 * minutes * fmax(peak, SMALL_FLOPS_LEAST);
    /* The first rung always; a higher one where text and time are enough for it. */
    WEFT_TRY(cost(f, &ladder[0], h));
    for (int i = 1; i < WEFT_COUNT(ladder); i++) {
        choice next;
        WEFT_TRY(cost(f, &ladder[i], &next));
        double parameters = (double)next.parameters;
        if (parameters > PARAMETERS_PER_TOKEN * (double)f->train ||
            next.tokens < TOKENS_PER_PARAMETER * parameters)
            break;
        *h = next;
    }
    double enough = TOKENS_ENOUGH * (double)h->parameters;
    double passes = PASSES_MOST * (double)f->train;
    h->tokens = fmin(h->tokens, fmax(enough, (double)f->train));
    h->tokens = fmin(h->tokens, passes);
    /* A batch that leaves about a thousand steps, and what goes with them. */
    weft_config *c = &h->config;
    double step = fmin(fmax(h->tokens / STEPS_WANTED, 512), 262144);
    c->batch_size = at_least(llround(step / (double)c->context), 1);
    c->micro_batch = -1; /* what fits */
    int64_t tokens = c->batch_size * c->context;
    c->steps = at_least((int64_t)(h->tokens / (double)tokens), STEPS_LEAST);
    weft_own_text_intervals(c);
    int64_t batches = at_least(f->val / tokens, 1);
    c->eval_samples = batches < 20 ? batches : 20;
    if (c->sample_tokens > c->context - PROMPT_MOST)
        c->sample_tokens = at_least(c->context - PROMPT_MOST, 1);
    snprintf(c->sample_prompt, sizeof c->sample_prompt, "%s", f->prompt);
    return WEFT_OK;
}

static weft_status open_backend(const weft_args *a, weft_pool **pool, facts *f) {
    weft_config c;
    weft_config_defaults(&c);
    if (a->device) WEFT_TRY(weft_config_set(&c, "DEVICE", a->device, "--device"));
    WEFT_TRY(weft_args_backend(a, &c, &f->backend, pool));
    f->threads = weft_pool_size(*pool);
    return WEFT_OK;
}

weft_status weft_own_text_choose(const weft_args *a, const char *const *paths, int n_paths,
                                 const char *data, double minutes, weft_config *c) {
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    facts f = {.compared = true};
    choice h;
    char place[PATH_MAX] = "embedded";
    WEFT_TRY(open_backend(a, &pool, &f));
    WEFT_TRY(choose(paths, n_paths, data, minutes, pool, &f, &h));
    if (n_paths > 0 && !realpath(data, place)) return weft_path_failed(data);
    WEFT_TRY(weft_config_set(&h.config, "DATASET", place, data));
    *c = h.config;
    return weft_config_cut_batch(c, f.backend, f.threads, 1);
}

/* The shards, and the config of what was chosen for them. */
static weft_status write_run(const weft_args *a, const char *const *paths, int n_paths,
                             const char *out, double minutes, weft_pool *pool, facts *f) {
    choice h;
    WEFT_PATH(data, "%s/data", out);
    WEFT_TRY(choose(paths, n_paths, data, minutes, pool, f, &h));
    const weft_config *c = &h.config;
    weft_log(WEFT_LOG_INFO, "%s: %s tokens of text, vocabulary %s", out,
             weft_count_text(f->train + f->val), weft_count_text(f->vocab));
    double used = (double)(c->steps * c->batch_size * c->context);
    double time = minutes * used * h.flops_per_token / f->flops;
    const char *unit = time < 1 ? "second" : "minute";
    if (time < 1) time = fmax(60 * time, 1);
    weft_log(WEFT_LOG_INFO,
             "%sa model of %s parameters: %lld layers, width %lld, %lld tokens of context; %lld "
             "steps, about %.0f %s%s; --minutes M for more",
             a->n_overrides > 0 ? "without -o: " : "", weft_count_text(h.parameters),
             (long long)c->n_layer, (long long)c->n_embd, (long long)c->context,
             (long long)c->steps, time, unit, time < 1.5 ? "" : "s");
    /* The dataset is named as it lies in the run's folder, which may be moved. */
    WEFT_PATH(path, "%s/config", out);
    snprintf(h.config.dataset, sizeof h.config.dataset, "data");
    WEFT_TRY(weft_config_cut_batch(&h.config, f->backend, f->threads, 1));
    return weft_config_save(&h.config, path);
}

weft_status weft_own_text_prepare(const weft_args *a, const char *const *paths, int n_paths,
                                  const char *out, double minutes) {
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    WEFT_AUTO(weft_metrics_close_at) weft_metrics *hold = NULL;
    facts f = {0};
    WEFT_TRY(weft_folder_make(out));
    WEFT_TRY(weft_checkpoint_unused(out));
    WEFT_TRY(open_backend(a, &pool, &f));
    /* From here on the folder is a run's, and this process's alone. */
    WEFT_TRY(weft_metrics_hold(out, &hold));
    weft_status status = write_run(a, paths, n_paths, out, minutes, pool, &f);
    if (status != WEFT_OK) weft_metrics_withdraw(hold);
    return status;
}
