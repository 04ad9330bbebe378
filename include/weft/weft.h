/* weft: an engine and workbench for transformer architectures.
 *
 * There are three public headers: models here, blocks and operations in graph.h, the optimizer's step
 * over the caller's memory in step.h. A caller may rely on what is in them; what is under src/ may
 * change.
 *
 * Six kinds of things, each opened, used and closed:
 *
 *   weft_engine     where work is done: a device and a fixed number of threads.
 *   weft_model      a config (which architecture, which sizes) and its weights. It knows no
 *                   batch's shape and runs nothing itself.
 *   weft_pass       a model built for one shape [batch, time] and one purpose. Building makes the
 *                   whole computation as a list of operations, the gradient's included, and plans
 *                   its memory: what fits when it is opened fits in every run, and a run allocates
 *                   nothing. Several passes of one model share its weights.
 *   weft_generation a model that writes: sequences of tokens, many at once, with their caches.
 *   weft_text       a tokenizer: text to tokens and back.
 *   weft_optimizer  AdamW, AdamWSPAM or Muon, as the config says: the moments of every weight, and the
 *                   step that takes a pass's gradients and changes the model's weights.
 *
 * A training in fifteen lines, for tokens and targets [8, 32]:
 *
 *     const char *options[] = {"ATTENTION=w2", "N_LAYER=2", "N_EMBD=64", "N_HEAD=4",
 *                              "VOCAB_SIZE=256", "CONTEXT=32", NULL};
 *     weft_engine *engine;
 *     weft_model *model;
 *     weft_pass *pass;
 *     weft_optimizer *optimizer;
 *     double loss;
 *     if (weft_engine_open(0, NULL, &engine) || weft_model_open(NULL, options, &model) ||
 *         weft_pass_open(engine, model, 8, 32, WEFT_PASS_TRAIN, &pass) ||
 *         weft_optimizer_open(engine, model, NULL, &optimizer))
 *         return fprintf(stderr, "%s\n", weft_error_message());
 *     for (uint32_t i = 0; i < 1000; i++) {
 *         ... fill tokens and targets ...
 *         weft_pass_run(pass, tokens, targets, 8 * 32, i);
 *         weft_optimizer_step(optimizer, pass, 1e-3);
 *     }
 *     weft_pass_loss(pass, "loss", &loss);
 *
 * Errors: functions that can fail return a weft_status and leave one line of explanation in
 * weft_error_message(). Nothing aborts on bad input: a NULL, a wrong count, an unknown name is
 * WEFT_EINPUT and changes nothing. When opening fails the handle is set to NULL; closing NULL is
 * allowed.
 *
 * Ownership: what is opened belongs to the caller and is closed by the caller, optimizers and
 * passes before the model and the engine they were opened with. Arrays that are passed in are
 * copied or filled during the call and never kept. Strings handed out belong to the library.
 *
 * Threads: a call may come from any thread, one at a time for each engine and for each model with
 * its passes and optimizers. Calls on different engines and models may run at the same time, and
 * calls that only read one model may too. The error message is the calling thread's own.
 *
 * Same input, same bits: results do not depend on the number of threads.
 *
 * Versions: the library's soname carries WEFT_VERSION_MAJOR. Within one, functions, names and
 * enumerators are added but neither removed nor changed, and weft_cost grows at its end only. While
 * it is 0 a change of WEFT_VERSION_MINOR may break a caller; CHANGELOG.md tells. Handles are
 * opaque pointers, arguments plain numbers, strings and arrays, so any language that can call C can
 * call this. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* What a call came to. WEFT_EINPUT is the caller's to mend (a shape, a type, a value);
 * WEFT_ENOMEM and WEFT_EIO are the machine's; WEFT_EMISSING names a part that was left out of
 * this build; WEFT_EBUG is ours. */
typedef enum {
    WEFT_OK = 0,
    WEFT_EINPUT,
    WEFT_ENOMEM,
    WEFT_EIO,
    WEFT_EMISSING,
    WEFT_EBUG
} weft_status;

/* "0.1.0", as the WEFT_VERSION_* numbers above. */
WEFT_API const char *weft_version(void);

/* One line on the calling thread's last failure: what, where, and what to do. Empty when nothing
 * failed yet; valid until the thread's next failing call. */
WEFT_API const char *weft_error_message(void);

typedef struct weft_engine weft_engine;
typedef struct weft_model weft_model;
typedef struct weft_pass weft_pass;
typedef struct weft_optimizer weft_optimizer;
typedef struct weft_generation weft_generation;
typedef struct weft_text weft_text;

/* The engine: where work is done. */

/* `threads`: how many work, the caller's own included; 0 is one for each processor. `device`:
 * "cpu", "cuda", or "auto" (also NULL), which takes a GPU where there is one this build can use.
 * The model's own DEVICE option is not looked at. */
WEFT_API weft_status weft_engine_open(int threads, const char *device, weft_engine **out);
WEFT_API void weft_engine_close(weft_engine *engine);
/* How many threads work; 0 for NULL. */
WEFT_API int weft_engine_threads(const weft_engine *engine);
/* "cpu" or "cuda"; NULL for NULL. */
WEFT_API const char *weft_engine_device(const weft_engine *engine);

/* The model: a config and its weights. */

/* Opens the model at `path`:
 *   a folder: a checkpoint, config.json and model.safetensors;
 *   a file:   a config in Kconfig's syntax; the weights are drawn from its SEED;
 *   NULL:     the default config, weights drawn.
 * `overrides` is a list of "KEY=VALUE" that ends on NULL, applied last; NULL: none. `weft help
 * config` lists the keys. DTYPE (f32, bf16, f64) is what the model computes in. Over a checkpoint
 * an override may change what training and evaluation do, but not which tensors there are. */
WEFT_API weft_status weft_model_open(const char *path, const char *const *overrides,
                                     weft_model **out);
WEFT_API void weft_model_close(weft_model *model);

/* One option's value as text ("y", "12", "w2"), ended by a zero, in `room` bytes at `out`. */
WEFT_API weft_status weft_model_option(const weft_model *model, const char *key, char *out,
                                       size_t room);

/* Writes a model's folder: config.json, model.safetensors, optimizer.safetensors where `optimizer` (of
 * that model) is not NULL, and state.json with their checksums. It is written beside and takes its
 * name when it is whole; a model's folder that weft made is replaced, one with anything else in it, or
 * one that a training run goes on from (its last or best), is refused. Opened again, model and optimizer
 * go on with equal bits. */
WEFT_API weft_status weft_save(const weft_model *model, const weft_optimizer *optimizer,
                               const char *folder);
/* The same with a copy of the file `tokenizer` as tokenizer.json; NULL: without. */
WEFT_API weft_status weft_save_with_tokenizer(const weft_model *model,
                                              const weft_optimizer *optimizer,
                                              const char *tokenizer, const char *folder);

/* The tensors a model has, in the order of their names: how many (0 for NULL), and the i-th one's
 * name (NULL where there is none; valid while the model is open). */
WEFT_API int64_t weft_model_tensors(const weft_model *model);
WEFT_API const char *weft_model_tensor_name(const weft_model *model, int64_t i);

/* A tensor's shape, outermost first: *ndim of the 4 numbers are set, the others are 1. `count`, the
 * product, is what reading and writing want. ndim and count may be NULL. */
WEFT_API weft_status weft_model_shape(const weft_model *model, const char *name, int64_t shape[4],
                                      int *ndim, int64_t *count);

/* A tensor's values, row-major, whatever type they are kept in; `count` must be the tensor's.
 * Passes and optimizers take up what is written in their next run or step. */
WEFT_API weft_status weft_model_read(const weft_model *model, const char *name, float *out,
                                     int64_t count);
WEFT_API weft_status weft_model_read_f64(const weft_model *model, const char *name, double *out,
                                         int64_t count);
WEFT_API weft_status weft_model_write(weft_model *model, const char *name, const float *values,
                                      int64_t count);
WEFT_API weft_status weft_model_write_f64(weft_model *model, const char *name, const double *values,
                                          int64_t count);

/* What a config costs, before anything is built. */
typedef struct {
    int64_t parameters;
    int64_t training_bytes; /* a training step at MICRO_BATCH sequences of CONTEXT: */
    int64_t weights_bytes, gradients_bytes, optimizer_bytes; /* of these, at its fullest moment */
    int64_t activations_bytes, workspace_bytes;
    int64_t cache_bytes_per_token; /* generation, the whole model */
    double forward_flops;          /* operations per token, of the formulas as written */
    double backward_flops;
} weft_cost;

/* `path` and `overrides` as in weft_model_open. `threads` (0: one for each processor) sizes
 * workspaces. `size` is sizeof(weft_cost) as the caller knows it: no more than that is written. No
 * weights are read and no memory of that size is taken. */
WEFT_API weft_status weft_estimate(const char *path, const char *const *overrides, int threads,
                                   weft_cost *out, size_t size);

/* The pass: a model built for a shape and a purpose. */

/* Purposes, added up. Without TRAIN a pass evaluates: no dropout, auxiliary losses are 0. */
enum {
    WEFT_PASS_EVAL = 0,
    WEFT_PASS_TRAIN = 1,    /* dropout, auxiliary losses, and the gradient of every weight */
    WEFT_PASS_LOGITS = 2,   /* keep the logits [batch, time, vocabulary] */
    WEFT_PASS_RECOMPUTE = 4 /* TRAIN: make each layer's activations again, for less memory */
};

/* Builds the model for `batch` sequences of `time` tokens, at most CONTEXT. */
WEFT_API weft_status weft_pass_open(weft_engine *engine, weft_model *model, int64_t batch,
                                    int64_t time, int purpose, weft_pass **out);
WEFT_API void weft_pass_close(weft_pass *pass);
/* Bytes the pass holds beside the weights; 0 for NULL. */
WEFT_API int64_t weft_pass_bytes(const weft_pass *pass);

/* Runs it: forward, and backward with TRAIN. tokens [batch, time], each in the vocabulary; targets
 * [batch, time], -1 where none is wanted. NULL targets are for passes that only evaluate: they give
 * logits and no loss. `count` is batch × time. `iteration` is what dropout's random numbers
 * belong to, beside the config's SEED: the same one drops the same. */
WEFT_API weft_status weft_pass_run(weft_pass *pass, const int32_t *tokens, const int32_t *targets,
                                   int64_t count, uint32_t iteration);

/* What the last run came to. `part`: "loss", which is the sum of the others, "cross_entropy",
 * "logits_z", "aux_z", "aux_contrastive"; a part the model does not have is 0. */
WEFT_API weft_status weft_pass_loss(const weft_pass *pass, const char *part, double *out);

/* The last run's logits, of a pass with LOGITS; `count` is batch × time × vocabulary. */
WEFT_API weft_status weft_pass_logits(const weft_pass *pass, float *out, int64_t count);
WEFT_API weft_status weft_pass_logits_f64(const weft_pass *pass, double *out, int64_t count);

/* The last run's gradient of the loss by a tensor, of a pass with TRAIN: zeros where the loss does
 * not depend on it. */
WEFT_API weft_status weft_pass_gradient(const weft_pass *pass, const char *name, float *out,
                                        int64_t count);
WEFT_API weft_status weft_pass_gradient_f64(const weft_pass *pass, const char *name, double *out,
                                            int64_t count);

/* The optimizer: its state, and the step. */

/* The optimizer that the model's config asks for (OPTIMIZER, ADAM_*, SPAM_*, WEIGHT_DECAY,
 * GRAD_CLIP). `folder`: a checkpoint whose optimizer.safetensors it goes on from; NULL: a fresh
 * start. */
WEFT_API weft_status weft_optimizer_open(weft_engine *engine, weft_model *model, const char *folder,
                                         weft_optimizer **out);
WEFT_API void weft_optimizer_close(weft_optimizer *optimizer);

/* One step with the gradients of a pass's last run: a pass of the same model, with TRAIN. `rate` is
 * the learning rate of this step. A gradient that is not finite makes a step that changes nothing
 * but the counter of skipped ones. */
WEFT_API weft_status weft_optimizer_step(weft_optimizer *optimizer, const weft_pass *pass,
                                         double rate);

/* What the last step did. "grad_norm": the gradient's norm before clipping; "lr": the rate that was
 * used; "clipped", "spike", "reset", "skipped": 1 if it was so; "cut": how many numbers spike
 * clipping cut. And over all steps so far: "steps", "clips", "spikes", "resets", "skips". */
WEFT_API weft_status weft_optimizer_event(const weft_optimizer *optimizer, const char *what,
                                          double *out);

/* Generation: sequences of tokens that the model goes on with, many at once.
 *
 *     weft_generation_open(engine, model, 8, 0, &g);
 *     weft_generation_add(g, prompt, n, options, &id);
 *     do {
 *         weft_generation_step(g, &busy);
 *         n = weft_generation_take(g, id, tokens, logprobs, room, &ended);
 *     } while (busy);
 *
 * A sequence makes the same tokens alone and among others, at any number of threads. */

/* Room for `sequences` that run at once (0: 8), each of at most `context` tokens (0: CONTEXT;
 * more where positions have no end). CACHE_DTYPE and WEIGHT_DTYPE of the model's config say what is
 * kept and read. Weights that change later are not taken up: open another. Runs on the CPU. */
WEFT_API weft_status weft_generation_open(weft_engine *engine, weft_model *model, int64_t sequences,
                                          int64_t context, weft_generation **out);
WEFT_API void weft_generation_close(weft_generation *generation);

/* Adds a sequence that begins with `count` tokens. More than `sequences` wait for their turn.
 * `options`: a list of "KEY=VALUE" that ends on NULL; NULL: none. Keys: temperature (1; 0 takes the
 * likeliest), top_k (0: all), top_p (1), min_p (0), repetition_penalty (1), seed (1), sample (0: the
 * number of this sample of a seed), max_tokens (256), end_token (-1: none). */
WEFT_API weft_status weft_generation_add(weft_generation *generation, const int32_t *prompt,
                                         int64_t count, const char *const *options, int64_t *id);

/* One step: each running sequence makes a token, and a piece of a prompt is read. *busy (may be
 * NULL): whether one still waits or runs. */
WEFT_API weft_status weft_generation_step(weft_generation *generation, int *busy);

/* Takes what a sequence has made and was not taken yet, up to `room` tokens, and their natural
 * log-probabilities where logprobs is not NULL: how many. *ended (may be NULL): 1 when all are taken
 * and no more come; -1 when no more come because the model's logits are not numbers, as
 * weft_error_message() tells; else 0. The other sequences go on. 0 tokens for an unknown id. */
WEFT_API int64_t weft_generation_take(weft_generation *generation, int64_t id, int32_t *tokens,
                                      float *logprobs, int64_t room, int *ended);

/* Ends a sequence, wherever it is, and frees what it holds. */
WEFT_API void weft_generation_remove(weft_generation *generation, int64_t id);

/* Text: a tokenizer, with the tokens that weft's own commands make. One call at a time for each. */

/* `name`: "bytes"; a tokenizer.json; GPT-2's vocab.bpe or encoder.json; or a folder that has one. */
WEFT_API weft_status weft_text_open(const char *name, weft_text **out);
WEFT_API void weft_text_close(weft_text *text);
/* Tokens are below this; 0 for NULL. */
WEFT_API int64_t weft_text_vocabulary(const weft_text *text);
/* The token that ends a text; -1: none. */
WEFT_API int32_t weft_text_end(const weft_text *text);

/* *count is how many tokens the text has, of which up to `room` are written. `specials` 1: the names of
 * special tokens in it become these tokens; 0: they are text like any other. */
WEFT_API weft_status weft_text_encode(weft_text *text, const char *bytes, size_t length,
                                      int specials, int32_t *tokens, int64_t room, int64_t *count);
/* *length is how many bytes the tokens have, of which up to `room` are written. No zero follows. */
WEFT_API weft_status weft_text_decode(const weft_text *text, const int32_t *tokens, int64_t count,
                                      char *bytes, size_t room, size_t *length);

#ifdef __cplusplus
}
#endif
#endif
