/* What has to be equal is put in a line of text each and compared with rank 0's. */
#include "train/ranks.h"

#include "base/crc32c.h"
#include "base/version.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 8, TEXT_ROOM = 512 };

/* The version, and the checksum of the program's file. */
static void describe_program(char *text, size_t room) {
    weft_sum sum = {0};
    if (weft_file_sum("/proc/self/exe", &sum) != WEFT_OK) sum.bytes = -1;
    snprintf(text, room, "commit %.12s, %lld bytes, checksum %08x", weft_git_commit(),
             (long long)sum.bytes, sum.crc);
}

/* How much there is, and the checksum of some sequences of either split. */
static weft_status describe_data(const weft_config *c, const weft_dataset *d, char *text,
                                 size_t room) {
    int64_t time = c->context;
    int32_t *tokens = malloc(2 * (size_t)time * sizeof *tokens);
    weft_status status = tokens ? WEFT_OK : weft_fail(WEFT_ENOMEM, "no memory for a sequence");
    uint32_t crc = 0;
    for (int i = 0; status == WEFT_OK && i < 2 * SAMPLES; i++) {
        weft_split split = i < SAMPLES ? WEFT_SPLIT_TRAIN : WEFT_SPLIT_VAL;
        status = weft_dataset_fill(d, split, (uint64_t)c->seed, (uint32_t)(i * i * 977),
                                   (uint32_t)i, time, tokens, tokens + time, NULL);
        crc = weft_crc32c(crc, tokens, 2 * (size_t)time * sizeof *tokens);
    }
    free(tokens);
    snprintf(text, room, "%s: %lld and %lld tokens, checksum of some %08x", weft_dataset_name(d),
             (long long)weft_dataset_tokens(d, WEFT_SPLIT_TRAIN),
             (long long)weft_dataset_tokens(d, WEFT_SPLIT_VAL), crc);
    return status;
}

static weft_status check_config(weft_comm *c, const weft_config *config) {
    json_t *object = weft_config_to_json(config);
    char *text = object ? json_dumps(object, JSON_INDENT(1) | JSON_SORT_KEYS) : NULL;
    json_decref(object);
    if (!text) return weft_fail(WEFT_ENOMEM, "no memory for the config's text");
    weft_status status = weft_comm_same(c, "config", text);
    free(text);
    return status;
}

weft_status weft_ranks_check(weft_comm *c, const weft_config *config, const weft_dataset *d) {
    char text[TEXT_ROOM];
    if (!c) return WEFT_OK;
    describe_program(text, sizeof text);
    WEFT_TRY(weft_comm_same(c, "program", text));
    WEFT_TRY(check_config(c, config));
    WEFT_TRY(weft_comm_agree(c, describe_data(config, d, text, sizeof text)));
    return weft_comm_same(c, "data", text);
}

weft_status weft_ranks_share(weft_comm *c, weft_model *m, weft_optimizer *o,
                             weft_train_state *state) {
    int64_t n;
    if (!c) return WEFT_OK;
    WEFT_TRY(weft_comm_broadcast(c, state, sizeof *state));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(weft_comm_broadcast(c, m->memory, m->memory_bytes));
    weft_mirror_wrote(m->mirror, NULL);
    if (weft_optimizer_shards(o)) {
        WEFT_TRY(weft_optimizer_refresh(o));
        return weft_optimizer_give_out(o);
    }
    const weft_weight *list;
    WEFT_TRY(weft_optimizer_state(o, &list, &n));
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(weft_comm_broadcast(c, list[i].data, list[i].bytes));
    return WEFT_OK;
}
