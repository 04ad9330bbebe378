/* weft bench: measured rows, a peer beside them. `train` measures whole training steps, `attention`
 * the attention operations alone, `decode` generation. */
#include "bench/decode_table.h"
#include "bench/op_table.h"
#include "bench/train_table.h"
#include "cli/args.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

const char weft_help_bench[] =
    "train: training steps (forward, backward, clipping, AdamW) of each variant on random tokens:\n"
    "tokens per second, memory planned and measured, share of the machine's limit (multiply-adds\n"
    "in registers; on a GPU a large matrix product).\n"
    "  --shape NAME       small (6 layers, 256 wide, 8 x 256 tokens; the default), or gpt2-124m,\n"
    "                     gpt2-355m or gpt2-1558m (8 x 1024 tokens: 10 GB and minutes on a CPU)\n"
    "  --config FILE      the sizes and options of this config instead\n"
    "  -o KEY=VALUE       override a config key in every row; repeatable\n"
    "  --variants A,B     dot, w2, cosine, mla, mla+gate, mla+gate+cross, mla+all, swiglu, wsffn, "
    "wsffn-grouped,\n"
    "                     mla-w2\n"
    "  --steps N          steps to measure per row, on both sides\n"
    "  --settle S         seconds of steps before those, so that a GPU's clock settles\n"
    "  --profile          where each row's time goes, by operation, on standard error\n"
    "attention: the attention operations alone, forward and with backward.\n"
    "  --quick            the main rows\n"
    "decode: generation with full caches: tokens per second, the bytes that must be read, how "
    "much\n"
    "of the machine's read rate is reached, and the time to the first token of a 512-token "
    "prompt.\n"
    "It takes --shape (default gpt2-124m), --config, -o, --variants and --steps too;\n"
    "-o WEIGHT_DTYPE=int8 and -o CACHE_DTYPE=bf16 choose what is read.\n"
    "  --contexts N,N     default: 256,2048,8192,32768\n"
    "  --batches N,N      sequences at once; default: 1,8,64\n"
    "  --prompt N         tokens of the prompt before the first token, at most 32768;\n"
    "                     default: 512; 0: leave that out, which saves most of the time\n"
    "all:\n"
    "  --peer COMMAND     measure another program in turns: \"python3 bench/peer_train.py\" for\n"
    "                     train, \"python3 bench/peer.py\" for attention,\n"
    "                     \"python3 bench/peer_decode.py\" for decode (all PyTorch)\n"
    "  --device D         cpu (the default) or cuda, for train and decode\n"
    "  --dtype T          f32 (the default) or bf16, for train and decode\n"
    "  --threads N        for both sides; default: one per processor\n"
    "  --json             one object on standard output\n";

enum { STEPS_MAX = 100000, SETTLE_MAX = 3600, PROMPT_MAX = 32768 };

typedef struct {
    const char *what, *shape, *variants, *steps, *settle, *peer, *contexts, *batches, *prompt;
    bool profile, quick;
} bench_args;

static int refuse(const char *text) {
    fprintf(stderr, "weft bench: %s\n", text);
    return WEFT_EXIT_USAGE;
}

static int finish(const weft_args *args, weft_status status, int failed) {
    if (status) return weft_args_fail(args, status);
    return failed ? WEFT_EXIT_FAILED : WEFT_EXIT_DONE;
}

static int bench_train(const weft_args *args, const bench_args *own) {
    if (own->quick) return refuse("--quick is attention's; train has --variants and --steps");
    if (args->variant) return refuse("--variant is not taken; name them: --variants mla,mla+all");
    if (args->config && own->shape) return refuse("--shape and --config: give one of them");
    const bench_shape *shape = bench_shape_find(own->shape ? own->shape : "small");
    if (!shape) return refuse("--shape must be small, gpt2-124m, gpt2-355m or gpt2-1558m");
    if (args->config) {
        int unreadable = weft_args_readable(args, args->config, NULL);
        if (unreadable) return unreadable;
    }
    char *end = "";
    long steps = own->steps ? strtol(own->steps, &end, 10) : 0;
    if (own->steps && (*end || steps < 1 || steps > STEPS_MAX))
        return refuse("--steps must be a whole number from 1 to 100000");
    double settle = own->settle ? strtod(own->settle, &end) : 0;
    if (own->settle && (*end || end == own->settle || !(settle >= 0 && settle <= SETTLE_MAX)))
        return refuse("--settle must be seconds from 0 to 3600");
    bench_train_options o = {
        .source = {shape, args->config, args->settings, args->n_settings},
        .variants = own->variants,
        .peer = own->peer,
        .threads = args->threads,
        .steps = (int)steps,
        .settle = settle,
        .profile = own->profile,
        .table = args->json ? NULL : stdout,
        .json = args->json ? stdout : NULL,
    };
    int failed = 0;
    weft_status status = bench_train_table(&o, &failed);
    return finish(args, status, failed);
}

static int bench_attention(const weft_args *args, const bench_args *own) {
    if (args->config || args->n_overrides || args->variant || args->seed >= 0 || own->shape ||
        own->variants || own->steps || own->settle || own->profile ||
        (args->dtype && strcmp(args->dtype, "f32") != 0))
        return refuse("attention takes --quick, --peer, --threads and --json only");
    if (args->device && strcmp(args->device, "cuda") == 0)
        return refuse("attention is measured on the CPU here; on a GPU: make bench-attention-cuda");
    bench_op_options o = {
        .rows = "attention",
        .peer = own->peer,
        .threads = args->threads,
        .quick = own->quick,
        .table = args->json ? NULL : stdout,
        .json = args->json ? stdout : NULL,
    };
    int differing = 0;
    weft_status status = bench_op_table(&o, &differing);
    return finish(args, status, differing);
}

static int bench_decode(const weft_args *args, const bench_args *own) {
    if (own->quick || own->settle || own->profile)
        return refuse("decode takes --shape, --variants, --contexts, --batches, --prompt, --steps, "
                      "-o");
    int64_t steps = 0, prompt = 512;
    int status = weft_args_number(args, "--steps", own->steps, 1, STEPS_MAX, &steps);
    if (!status) status = weft_args_number(args, "--prompt", own->prompt, 0, PROMPT_MAX, &prompt);
    if (status) return status;
    if (args->config && own->shape) return refuse("--shape and --config: give one of them");
    const bench_shape *shape = bench_shape_find(own->shape ? own->shape : "gpt2-124m");
    if (!shape) return refuse("--shape must be small, gpt2-124m, gpt2-355m or gpt2-1558m");
    bench_decode_options o = {
        .source = {shape, args->config, args->settings, args->n_settings},
        .variants = own->variants,
        .contexts = own->contexts,
        .batches = own->batches,
        .prompt = prompt,
        .peer = own->peer,
        .cuda = args->device && strcmp(args->device, "cuda") == 0,
        .threads = args->threads,
        .steps = (int)steps,
        .table = args->json ? NULL : stdout,
        .json = args->json ? stdout : NULL,
    };
    int failed = 0;
    weft_status done = bench_decode_table(&o, &failed);
    return finish(args, done, failed);
}

int weft_cmd_bench(int argc, char **argv) {
    weft_args args;
    bench_args own = {0};
    const weft_arg options[] = {
        {"--shape", &own.shape, NULL, false},
        {"--variants", &own.variants, NULL, false},
        {"--steps", &own.steps, NULL, false},
        {"--settle", &own.settle, NULL, false},
        {"--peer", &own.peer, NULL, false},
        {"--profile", NULL, &own.profile, false},
        {"--quick", NULL, &own.quick, false},
        {"--contexts", &own.contexts, NULL, false},
        {"--batches", &own.batches, NULL, false},
        {"--prompt", &own.prompt, NULL, false},
        {NULL, NULL, NULL, false},
    };
    int status = weft_args_parse(&args, argc, argv, options, &own.what, 1);
    if (status) return status;
    if (!own.what) return refuse("say what: train, decode or attention");
    bool decode = strcmp(own.what, "decode") == 0;
    if (!decode && (own.contexts || own.batches || own.prompt))
        return refuse("--contexts, --batches and --prompt are decode's");
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an answer, not an end */
    if (strcmp(own.what, "train") == 0) return bench_train(&args, &own);
    if (strcmp(own.what, "attention") == 0) return bench_attention(&args, &own);
    if (decode) return bench_decode(&args, &own);
    fprintf(stderr, "weft bench: there is no '%s'; there are train, decode and attention\n",
            own.what);
    return WEFT_EXIT_USAGE;
}
