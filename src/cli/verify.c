/* weft verify: the self-check on this machine, a line per block. */
#include "model/verify.h"
#include "base/json.h"
#include "cli/args.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

const char weft_help_verify[] =
    "  --threads N\tdefault: one per processor\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --json\tone object on standard output\n"
    "\n"
    "Builds each block small and checks its shapes, its forward pass, its gradients against finite "
    "differences, and that no token sees a later one. Exits 1 if any check failed.\n";

weft_status weft_cmd_verify(weft_args *args, int argc, char **argv) {
    weft_config c;
    const weft_backend *backend;
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    WEFT_TRY(
        weft_args_parse(args, argc, argv, ARGS_JSON | ARGS_THREADS | ARGS_DEVICE, NULL, NULL, 0));
    WEFT_TRY(weft_args_config(args, &c));
    WEFT_TRY(weft_args_backend(args, &c, &backend, &pool));
    int passed = 0, failed = 0;
    WEFT_AUTO_DECREF json_t *rows = json_array();
    for (int block = 0; block < weft_verify_count; block++) {
        const weft_verify_block *b = &weft_verify_blocks[block];
        json_t *row = weft_json_make("block:s what:s", b->name, b->what);
        for (int check = 0; check < WEFT_VERIFY_CHECKS; check++) {
            const char *name = weft_verify_check_names[check];
            bool ok = weft_verify_run(block, (weft_verify_check)check, backend, pool) == WEFT_OK;
            passed += ok;
            failed += !ok;
            json_object_set_new(row, name, json_boolean(ok));
            if (args->json) continue;
            printf("%s: %s... %s%s\n", b->name, name,
                   ok ? "PASSED" : "FAILED: ", ok ? "" : weft_error_message());
        }
        json_array_append_new(rows, row);
    }
    if (args->json)
        weft_args_print(weft_json_make("passed:i failed:i blocks:O", passed, failed, rows), 0);
    else
        printf("%d PASSED, %d FAILED (%s backend, %s, %d threads)\n", passed, failed, backend->name,
               backend->remote ? weft_cuda_device_name() : weft_cpu_isa(), weft_pool_size(pool));
    if (failed) args->exit = WEFT_EXIT_FAILED;
    return WEFT_OK;
}
