/* weft plan: what a config costs, as a table or as JSON; for a study, each of its variants. */
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "cpu/backend.h"
#include "cuda/choice.h"
#include "device/device.h"
#include "model/account.h"
#include "model/cached.h"
#include "ops/list.h"

const char weft_help_plan[] =
    "  --config FILE\tthe config; default: every option's own default\n"
    "  --variant NAME|N\tone variant of the study, or 0 to 5 of the ablation; default: all\n"
    "  -o KEY=VALUE\toverride a config key; repeatable\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto: whose memory it must fit\n"
    "  --threads N\tworkspaces for that many threads\n"
    "  --no-workspace\twithout the kernels' workspaces: the same on every processor\n"
    "  --ranks P\tmemory of one of P processes too, with each value of SHARD\n"
    "  --json\tone object on standard output\n"
    "\n"
    "Nothing is run and no memory is taken: parameters, operations and memory are read off the "
    "graph that training would build. Operations are nominal: those of the formulas as written, a "
    "causal score counted once, backward twice forward. With --device cuda it also says which "
    "kernels attention and routing get: those on the tensor cores are fast; for the others it "
    "names the option and the nearest values that are. What STUDY_EQUAL changes is in 'weft study "
    "--list'.\n";

static double mib(int64_t bytes) {
    return (double)bytes / (1024.0 * 1024.0);
}

static int64_t part_parameters(const weft_account *a, const char *name) {
    for (int i = 0; i < a->n_parts; i++)
        if (strcmp(a->parts[i].name, name) == 0) return a->parts[i].parameters;
    return 0;
}

/* Forward by part, in the order of the model; 0 where it has none. */
static const struct {
    const char *name;
    size_t at; /* of an account */
} flops_parts[] = {{"attention", offsetof(weft_account, attention_flops)},
                   {"feed-forward", offsetof(weft_account, ffn_flops)},
                   {"z-heads", offsetof(weft_account, z_flops)},
                   {"reciprocal", offsetof(weft_account, reciprocal_flops)},
                   {"head", offsetof(weft_account, head_flops)}};

static double flops_of_part(const weft_account *a, int part) {
    return *(const double *)(const void *)((const char *)a + flops_parts[part].at);
}

static void print_table(const weft_account *a) {
    printf("parameters          %14s\n", weft_count_text(a->parameters));
    for (int i = 0; i < a->n_parts; i++)
        printf("  %-17s %14s\n", a->parts[i].name, weft_count_text(a->parts[i].parameters));
    printf("  attention : feed-forward   1 : %.2f\n",
           (double)part_parameters(a, "feed-forward") / (double)part_parameters(a, "attention"));
    printf("operations per token\n");
    printf("  forward           %14.4g MFLOP\n", a->forward_flops / 1e6);
    for (int i = 0; i < WEFT_COUNT(flops_parts); i++)
        if (flops_of_part(a, i) > 0)
            printf("    %-15s %14.4g MFLOP\n", flops_parts[i].name, flops_of_part(a, i) / 1e6);
    printf("  backward          %14.4g MFLOP\n", a->backward_flops / 1e6);
    printf("  built, both       %14.4g MFLOP\n", a->built_flops / 1e6);
    if (a->first_phase_flops > 0)
        printf("  of it first phase %14.4g MFLOP (forward of all micro-batches for the contrastive "
               "loss)\n",
               a->first_phase_flops / 1e6);
    printf("training            %14.1f MiB\n", mib(a->training_bytes));
    printf("  weights           %14.1f MiB\n", mib(a->weights_bytes));
    printf("  gradients         %14.1f MiB\n", mib(a->gradients_bytes));
    printf("  optimizer         %14.1f MiB\n", mib(a->optimizer_bytes));
    printf("  activations       %14.1f MiB\n", mib(a->activations_bytes));
    printf("  workspace         %14.1f MiB\n", mib(a->workspace_bytes));
    printf("  kept per token and layer %7.0f numbers\n", a->kept_per_token_layer);
    printf("cache per token     %14s bytes\n", weft_count_text(a->cache_bytes_token));
    printf("  per layer         %14s bytes\n", weft_count_text(a->cache_bytes_layer));
    if (a->cache_bytes_sequence > 0)
        printf("  and per sequence  %14s bytes\n", weft_count_text(a->cache_bytes_sequence));
}

/* What the cross-token path's numbers for each token come to with a matrix of low rank, where they are fewer. */
static void print_rank(const weft_config *c, const weft_account *a) {
    weft_config low = *c;
    low.cross_rank = 64;
    int64_t bytes = weft_cached_token_bytes(&low, weft_config_dtype(c));
    if (c->cross_token && !c->cross_rank && bytes < a->cache_bytes_token)
        printf("  of rank 64        %14s bytes, by RA_MLA_MLP_CROSS_RANK=64\n",
               weft_count_text(bytes));
}

/* Which kernels the GPU runs: one row for layers that follow each other and get the same. */
enum { KERNEL_ROWS = 64 };

typedef struct {
    int first, last; /* layers, from 0; products: of no layer in particular, -1 */
    weft_cuda_choice choice;
} kernel_row;

typedef struct {
    kernel_row rows[KERNEL_ROWS];
    int n, layer; /* layer: of the last attention */
} kernel_list;

static void list_kernel(void *to, const weft_node *n) {
    kernel_list *k = to;
    weft_cuda_choice c;
    bool product = n->op->id == WEFT_OP_matmul;
    if (n->op->id == WEFT_OP_attention) k->layer++;
    if (!weft_cuda_choose(n, &c) || (product && c.fast)) return;
    int layer = product ? -1 : k->layer;
    for (int i = 0; i < k->n; i++) {
        kernel_row *r = &k->rows[i];
        if (r->choice.how != c.how || strcmp(r->choice.option, c.option) != 0) continue;
        if (r->choice.what != c.what || r->last + 1 < layer) continue;
        r->last = layer;
        return;
    }
    if (k->n < KERNEL_ROWS) k->rows[k->n++] = (kernel_row){layer, layer, c};
}

static void print_kernels(const kernel_list *k) {
    printf("kernels on the GPU, by layer\n");
    for (int i = 0; i < k->n; i++) {
        const weft_cuda_choice *c = &k->rows[i].choice;
        char layers[32] = "";
        if (k->rows[i].first >= 0)
            snprintf(layers, sizeof layers, "%d to %d", k->rows[i].first, k->rows[i].last);
        printf("  %-17s %14s  %s%s%s%s%s\n", c->what, layers, c->option, *c->option ? ": " : "",
               c->how, *c->nearest ? "; " : "", c->nearest);
    }
}

static json_t *kernels_json(const kernel_list *k) {
    const kernel_row *r = k->rows;
    WEFT_JSON_LIST(
        rows, i, k->n,
        weft_json_make("operation:s first_layer:i last_layer:i fast:b how:s option:s nearest:s",
                       r[i].choice.what, r[i].first, r[i].last, r[i].choice.fast, r[i].choice.how,
                       r[i].choice.option, r[i].choice.nearest));
    return rows;
}

enum { SHARDS = 3 };
static const char *const shard_names[SHARDS] = {"none", "optimizer", "gradients"};

static json_t *ranks_json(const weft_rank_bytes list[SHARDS], int ranks) {
    json_t *all = weft_json_make("ranks:i", ranks);
    for (int i = 0; i < SHARDS; i++)
        json_object_set_new(all, shard_names[i],
                            weft_json_make("weights:I optimizer:I sums:I arena:I all:I",
                                           list[i].weights, list[i].optimizer, list[i].sums,
                                           list[i].arena, list[i].all));
    return all;
}

static json_t *to_json(const weft_account *a) {
    json_t *parts = json_object(), *forward = json_object();
    for (int i = 0; i < a->n_parts; i++)
        json_object_set_new(parts, a->parts[i].name, json_integer(a->parts[i].parameters));
    for (int i = 0; i < WEFT_COUNT(flops_parts); i++)
        json_object_set_new(forward, flops_parts[i].name, json_real(flops_of_part(a, i)));
    json_t *training = weft_json_make("weights:I gradients:I optimizer:I activations:I workspace:I",
                                      a->weights_bytes, a->gradients_bytes, a->optimizer_bytes,
                                      a->activations_bytes, a->workspace_bytes);
    return weft_json_make(
        "parameters:I parts:o flops_per_token:f forward_flops_per_token:f forward_flops_parts:o "
        "backward_flops_per_token:f built_flops_per_token:f first_phase_flops_per_token:f "
        "training_bytes:I training:o kept_per_token_layer:f cache_bytes_per_token:I "
        "cache_bytes_per_token_layer:I cache_bytes_per_sequence:I",
        a->parameters, parts, a->forward_flops + a->backward_flops, a->forward_flops, forward,
        a->backward_flops, a->built_flops, a->first_phase_flops, a->training_bytes, training,
        a->kept_per_token_layer, a->cache_bytes_token, a->cache_bytes_layer,
        a->cache_bytes_sequence);
}

/* Every variant of a study. In JSON `first`, what no --variant means, is beside them. All is counted
 * before anything is printed, so that a variant which fails leaves no half of a table. */
static weft_status plan_variants(const weft_args *args, const weft_config *base,
                                 const weft_account *first, const weft_variants *variants,
                                 const weft_backend *device, const weft_backend *backend,
                                 int threads) {
    WEFT_ROOM(weft_account, accounts, variants->n, "plan: no memory");
    for (int i = 0; i < variants->n; i++) {
        weft_args one = *args;
        weft_config c;
        one.variant = variants->list[i].name;
        WEFT_TRY(weft_args_config(&one, &c));
        WEFT_TRY(weft_config_cut_batch(&c, device, threads, 1));
        WEFT_TRY(weft_account_make(&c, backend, threads, &accounts[i]));
    }
    if (args->json) {
        json_t *all = to_json(first), *rows = json_array();
        for (int i = 0; i < variants->n; i++) {
            json_t *row = to_json(&accounts[i]);
            const char *name = variants->list[i].name;
            /* `step` is the key's old name. There an ablation's step is a number, as it always was. */
            bool named = weft_variants_by_name(base);
            weft_json_add(row, "variant:s step:o", name,
                          named ? json_string(name) : json_integer(atoi(name)));
            json_array_append_new(rows, row);
        }
        weft_json_add(all, "steps:o", rows);
        weft_args_print(all, 0);
    } else {
        int width = 7;
        for (int i = 0; i < variants->n; i++)
            if ((int)strlen(variants->list[i].name) > width)
                width = (int)strlen(variants->list[i].name);
        printf("%*s %14s %14s %14s %14s %14s\n", width, "variant", "parameters", "MFLOP/token",
               "training MiB", "kept/tok/layer", "cache B/token");
        for (int i = 0; i < variants->n; i++) {
            const char *label = strcmp(variants->list[i].title, variants->list[i].name) != 0
                                    ? variants->list[i].title
                                    : "";
            printf("%*s %14s %14.4g %14.1f %14.0f %14s%s%s\n", width, variants->list[i].name,
                   weft_count_text(accounts[i].parameters),
                   (accounts[i].forward_flops + accounts[i].backward_flops) / 1e6,
                   mib(accounts[i].training_bytes), accounts[i].kept_per_token_layer,
                   weft_count_text(accounts[i].cache_bytes_token), *label ? "  " : "",
                   weft_shown(label));
        }
    }
    return WEFT_OK;
}

/* A build without CUDA still answers: parameters and operations are the same, and memory but for the
 * kernels' own workspace. */
static weft_status open_backend(const weft_args *args, const weft_config *c,
                                const weft_backend **out) {
    weft_status status = weft_device_plan(c->device, weft_config_dtype(c), out);
    if (status != WEFT_EMISSING) return status;
    *out = weft_cpu_backend();
    if (!args->json)
        printf("this weft was built without CUDA: workspace is counted as the CPU's kernels take "
               "it\n");
    return WEFT_OK;
}

static weft_status plan(const weft_args *args, int ranks, bool workspace) {
    weft_config c;
    const weft_backend *backend;
    weft_pool *pool;
    weft_account a;
    WEFT_AUTO(weft_variants_free) weft_variants variants = {0};
    WEFT_TRY(weft_args_config(args, &c));
    WEFT_TRY(open_backend(args, &c, &backend));
    WEFT_TRY(weft_pool_create(args->threads, &pool));
    int threads = weft_pool_size(pool);
    const weft_backend *counted = workspace ? backend : NULL; /* whose workspaces count */
    weft_pool_destroy(pool);
    int several = ranks > 1 ? ranks : 1;
    WEFT_TRY(weft_config_cut_batch(&c, backend, threads, several));
    WEFT_TRY(weft_account_make(&c, counted, threads, &a));
    if (!args->variant && weft_variants_listed(&c)) {
        if (ranks)
            return WEFT_BAD_INPUT("--ranks is of one model, and this config is a study's; "
                                  "--variant NAME picks one of its variants");
        WEFT_TRY(
            weft_variants_parse(&c, args->config ? args->config : "config", "study", &variants));
        return plan_variants(args, &c, &a, &variants, backend, counted, threads);
    }
    weft_fit fit;
    weft_rank_bytes bytes[SHARDS];
    WEFT_TRY(weft_account_fit(&c, backend, threads, several, &fit));
    for (int i = 0; ranks && i < SHARDS; i++) {
        weft_config one = c;
        one.shard = i;
        WEFT_TRY(weft_account_rank(&one, backend, threads, ranks, &bytes[i]));
    }
    bool on_gpu = c.device == WEFT_DEVICE_CUDA || strcmp(backend->name, "cuda") == 0;
    kernel_list kernels = {.layer = -1};
    if (on_gpu) WEFT_TRY(weft_account_nodes(&c, list_kernel, &kernels));
    if (args->json) {
        json_t *object = to_json(&a);
        json_t *device = weft_json_make(
            "name:s fits:b needed_bytes:I free_bytes:I micro_batch:I micro_batch_bytes:I",
            backend->name, fit.there == 0 || fit.needed <= fit.there, fit.needed, fit.there,
            fit.micro_batch, fit.would_need);
        weft_json_add(object, "device:o kernels:o* rank_bytes:o*", device,
                      on_gpu ? kernels_json(&kernels) : NULL,
                      ranks ? ranks_json(bytes, ranks) : NULL);
        weft_args_print(object, 0);
    } else {
        print_table(&a);
        print_rank(&c, &a);
        printf("on %-16s %14.1f MiB with the held-out pass and sums over micro-batches\n",
               backend->name, mib(fit.needed));
        if (fit.there == 0 && strcmp(backend->name, "cuda") == 0)
            printf("  there is no GPU here: planned as for an NVIDIA H200\n");
        else if (weft_fit_check(&fit, backend) == WEFT_OK)
            printf("  fits into         %14.1f MiB\n", mib(fit.there));
        else
            printf("  does not fit: %s\n", weft_error_message());
        if (on_gpu) print_kernels(&kernels);
        if (ranks) {
            printf("one of %d ranks, MiB   weights  optimizer       sums      arena        all\n",
                   ranks);
            for (int i = 0; i < SHARDS; i++)
                printf("  SHARD=%-12s %9.1f %10.1f %10.1f %10.1f %10.1f\n", shard_names[i],
                       mib(bytes[i].weights), mib(bytes[i].optimizer), mib(bytes[i].sums),
                       mib(bytes[i].arena), mib(bytes[i].all));
        }
    }
    return WEFT_OK;
}

weft_status weft_cmd_plan(weft_args *args, int argc, char **argv) {
    int64_t ranks = 0;
    bool portable = false;
    const weft_arg own[] = {{"--ranks", .number = &ranks, .min = 1, .max = 1000000},
                            {"--no-workspace", .flag = &portable},
                            {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL, own, NULL, 0));
    if (args->config) WEFT_TRY(weft_args_readable(args->config, NULL));
    return plan(args, (int)ranks, !portable);
}
