/* weft bench: measured rows, a peer beside them. `train` measures whole training steps, `attention`
 * the attention operations alone, `decode` generation. */
#include "base/files.h"
#include "bench/tables.h"
#include "cli/checkpoint.h"

#include <math.h>
#include <signal.h>
#include <string.h>

const char weft_help_bench[] =
    "train: training steps (forward, backward, clipping, AdamW) of each variant on random tokens: "
    "tokens per second, memory planned and measured, share of the machine's limit (multiply-adds "
    "in registers; on a GPU a large matrix product).\n"
    "  --shape NAME       small (6 layers, 256 wide, 8 x 256 tokens; the default), or gpt2-124m, "
    "gpt2-355m or gpt2-1558m (8 x 1024 tokens: 10 GB and minutes on a CPU)\n"
    "  --config FILE      the sizes and options of this config instead\n"
    "  -o KEY=VALUE       override a config key in every row; repeatable\n"
    "  --variants A,B     dot, w2, cosine, mla, mla+gate, mla+gate+cross, mla+all, swiglu, wsffn, "
    "wsffn-grouped, mla-w2\n"
    "  --steps N          steps to measure per row, on both sides\n"
    "  --settle S         seconds of steps before those, so that a GPU's clock settles\n"
    "  --profile          where each row's time goes, by operation, on standard error\n"
    "attention: the attention operations alone, forward and with backward.\n"
    "  --quick            the main rows\n"
    "decode: generation with full caches: tokens per second, the bytes that must be read, how much "
    "of the machine's read rate is reached, and the time to the first token of a 512-token prompt. "
    "It takes --shape (default gpt2-124m), --config, -o, --variants and --steps too; -o "
    "WEIGHT_DTYPE=int8 and -o CACHE_DTYPE=bf16 choose what is read.\n"
    "  --contexts N,N     default: 256,2048,8192,32768\n"
    "  --batches N,N      sequences at once; default: 1,8,64\n"
    "  --prompt N         tokens of the prompt before the first token, at most 32768; default: "
    "512; 0: leave that out, which saves most of the time\n"
    "  --speculate HOW    what drafts are worth instead (see 'weft help generate'): how many "
    "tokens "
    "are right, tokens per step, and the gain over plain decoding\n"
    "  --model DIR        with --speculate: the checkpoint. -o DATASET=... names what it was "
    "trained "
    "on; default: embedded\n"
    "  --text FILE        with --speculate: a text of another kind; default: this help\n"
    "all:\n"
    "  --peer COMMAND     measure another program in turns: \"python3 bench/peer_train.py\" for "
    "train, \"python3 bench/peer.py\" for attention, \"python3 bench/peer_decode.py\" for decode "
    "(all PyTorch)\n"
    "  --device D         cpu (the default) or cuda, for train and decode\n"
    "  --dtype T          f32 (the default) or bf16, for train and decode\n"
    "  --threads N        for both sides; default: one per processor\n"
    "  --json             one object on standard output\n";

typedef struct {
    const char *what, *shape, *variants, *peer, *contexts, *batches, *prompt_text;
    const char *speculate, *model, *text;
    int64_t steps, prompt;
    double settle; /* below 0: not given */
    bool profile, quick;
} bench_args;

/* The sizes to measure: a shape's, or a config's. */
static int find_source(const weft_args *a, const bench_args *own, const char *usual,
                       bench_config_source *out) {
    if (a->variant)
        return weft_args_refuse(a, "--variant is not taken; name them: --variants mla,mla+all");
    if (a->config && own->shape)
        return weft_args_refuse(a, "--shape and --config: give one of them");
    const bench_shape *shape = bench_shape_find(own->shape ? own->shape : usual);
    if (!shape)
        return weft_args_refuse(a, "--shape must be small, gpt2-124m, gpt2-355m or gpt2-1558m");
    *out = (bench_config_source){shape, a->config, a->settings, a->n_settings};
    return a->config ? weft_args_readable(a, a->config, NULL) : WEFT_EXIT_DONE;
}

static int bench_train(const weft_args *a, const bench_args *own, const bench_setup *setup,
                       int *failed) {
    if (own->quick)
        return weft_args_refuse(a, "--quick is attention's; train has --variants and --steps");
    bench_train_options o = {.setup = *setup,
                             .variants = own->variants,
                             .steps = (int)own->steps,
                             .settle = fmax(own->settle, 0),
                             .profile = own->profile};
    int wrong = find_source(a, own, "small", &o.source);
    return wrong ? wrong : weft_args_end(a, bench_train_table(&o, failed));
}

static int bench_attention(const weft_args *a, const bench_args *own, const bench_setup *setup,
                           int *failed) {
    if (a->config || a->n_overrides || a->variant || a->seed >= 0 || own->shape || own->variants ||
        own->steps || own->settle >= 0 || own->profile ||
        (a->dtype && strcmp(a->dtype, "f32") != 0))
        return weft_args_refuse(a, "attention takes --quick, --peer, --threads and --json only");
    if (a->device && strcmp(a->device, "cuda") == 0)
        return weft_args_refuse(
            a, "attention is measured on the CPU here; on a GPU: make bench-attention-cuda");
    bench_op_options o = {.setup = *setup, .rows = "attention", .quick = own->quick};
    return weft_args_end(a, bench_op_table(&o, failed));
}

static int bench_decode(const weft_args *a, const bench_args *own, const bench_setup *setup,
                        int *failed) {
    if (own->quick || own->settle >= 0 || own->profile)
        return weft_args_refuse(a, "decode takes --shape, --variants, --contexts, --batches, "
                                   "--prompt, --steps, -o");
    bench_decode_options o = {.setup = *setup,
                              .variants = own->variants,
                              .contexts = own->contexts,
                              .batches = own->batches,
                              .prompt = own->prompt,
                              .cuda = a->device && strcmp(a->device, "cuda") == 0,
                              .steps = (int)own->steps};
    int wrong = find_source(a, own, "gpt2-124m", &o.source);
    return wrong ? wrong : weft_args_end(a, bench_decode_table(&o, failed));
}

static weft_status measure_drafts(const weft_args *a, const bench_args *own,
                                  const bench_setup *setup, weft_loaded *model,
                                  weft_loaded *draft) {
    enum { TEXT_MOST = 1 << 20 };
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    weft_generator_limits limits = {0};
    if (own->text) WEFT_TRY(weft_file_read(own->text, TEXT_MOST, &text, &bytes));
    WEFT_TRY(weft_loaded_open(a, own->model, false, WEFT_LOADED_GENERATION, model));
    WEFT_TRY(weft_speculation_open(a, own->speculate, false, model, draft, &limits));
    bench_speculate_options o = {.setup = *setup,
                                 .how = own->speculate,
                                 .model = model->model,
                                 .draft = limits.draft,
                                 .encoder = model->encoder,
                                 .backend = model->backend,
                                 .pool = model->pool,
                                 .other = text ? text : weft_help_bench,
                                 .other_name = text ? own->text : "this help"};
    return bench_speculate_table(&o);
}

static int bench_speculate(const weft_args *a, const bench_args *own, const bench_setup *setup) {
    weft_loaded model = {0}, draft = {0};
    if (!own->speculate)
        return weft_args_refuse(a, "--model and --text go with --speculate ngram or DIR");
    if (!own->model) return weft_args_refuse(a, "--speculate needs --model, a trained checkpoint");
    if (a->config || own->shape || own->variants || own->contexts || own->batches ||
        own->prompt_text || own->steps || own->peer)
        return weft_args_refuse(a, "--speculate takes --model, --text, -o, --device, --dtype, "
                                   "--threads and --json");
    weft_status status = measure_drafts(a, own, setup, &model, &draft);
    weft_loaded_close(&model);
    weft_loaded_close(&draft);
    return weft_args_end(a, status);
}

int weft_cmd_bench(int argc, char **argv) {
    weft_args args;
    bench_args own = {.prompt = 512, .settle = -1};
    const weft_arg options[] = {
        {"--shape", .value = &own.shape},
        {"--variants", .value = &own.variants},
        {"--steps", .number = &own.steps, .min = 1, .max = 100000},
        {"--settle", .real = &own.settle, .max = 3600},
        {"--peer", .value = &own.peer},
        {"--profile", .flag = &own.profile},
        {"--quick", .flag = &own.quick},
        {"--contexts", .value = &own.contexts},
        {"--speculate", .value = &own.speculate},
        {"--model", .value = &own.model},
        {"--text", .value = &own.text},
        {"--batches", .value = &own.batches},
        {"--prompt", .value = &own.prompt_text, .number = &own.prompt, .max = 32768},
        {0},
    };
    int status = weft_args_parse(&args, argc, argv, ARGS_ALL, options, &own.what, 1), failed = 0;
    if (status) return status;
    if (!own.what) return weft_args_refuse(&args, "say what: train, decode or attention");
    bool decode = strcmp(own.what, "decode") == 0, train = strcmp(own.what, "train") == 0;
    if (!decode && !train && strcmp(own.what, "attention") != 0)
        return weft_args_refuse(&args, "there is no '%s'; there are train, decode and attention",
                                own.what);
    if (!decode && (own.contexts || own.batches || own.prompt_text))
        return weft_args_refuse(&args, "--contexts, --batches and --prompt are decode's");
    bool speculate = own.speculate || own.model || own.text;
    if (!decode && speculate)
        return weft_args_refuse(&args, "--speculate, --model and --text are decode's");
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an answer, not an end */
    bench_setup setup = {.peer = own.peer,
                         .threads = args.threads,
                         .table = args.json ? NULL : stdout,
                         .json = args.json ? stdout : NULL};
    status = train       ? bench_train(&args, &own, &setup, &failed)
             : speculate ? bench_speculate(&args, &own, &setup)
             : decode    ? bench_decode(&args, &own, &setup, &failed)
                         : bench_attention(&args, &own, &setup, &failed);
    return !status && failed ? WEFT_EXIT_FAILED : status;
}
