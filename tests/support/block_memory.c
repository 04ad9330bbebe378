/* Memory for blocks, and values in it. */
#include "support/block_memory.h"

#include "support/test.h"

#include <stdlib.h>
#include <string.h>

weft_engine *engine;

int open_engine(void **state) {
    (void)state;
    return (int)weft_engine_open(2, "cpu", &engine);
}

int close_engine(void **state) {
    (void)state;
    weft_engine_close(engine);
    return 0;
}

void refused(weft_status got, weft_status want, const char *text) {
    assert_int_equal(got, want);
    if (!strstr(weft_error_message(), text))
        fail_msg("'%s' does not say '%s'", weft_error_message(), text);
}

piece new_piece(int64_t bytes, int fill) {
    piece p = {NULL, bytes};
    size_t room = ((size_t)bytes + MEMORY_GUARD + 63) / 64 * 64;
    p.at = aligned_alloc(64, room);
    assert_non_null(p.at);
    memset(p.at, fill, (size_t)bytes);
    memset((char *)p.at + bytes, 0x5a, MEMORY_GUARD);
    return p;
}

void free_piece(piece *p) {
    for (int i = 0; p->at && i < MEMORY_GUARD; i++)
        assert_int_equal(((unsigned char *)p->at)[p->bytes + i], 0x5a);
    free(p->at);
    p->at = NULL;
}

static int value_bytes(const char *type) {
    return strcmp(type, "f64") == 0 ? 8 : strcmp(type, "bf16") == 0 ? 2 : 4;
}

void put_value(const weft_block_info *t, void *at, int64_t i, double value) {
    float f = (float)value;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if (strcmp(t->type, "f64") == 0)
        ((double *)at)[i] = value;
    else if (strcmp(t->type, "bf16") == 0)
        ((uint16_t *)at)[i] = (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    else if (strcmp(t->type, "i32") == 0)
        ((int32_t *)at)[i] = (int32_t)value;
    else
        ((float *)at)[i] = f;
}

double get_value(const weft_block_info *t, const void *at, int64_t i) {
    if (strcmp(t->type, "f64") == 0) return ((const double *)at)[i];
    if (strcmp(t->type, "i32") == 0) return ((const int32_t *)at)[i];
    if (strcmp(t->type, "f32") == 0) return (double)((const float *)at)[i];
    uint32_t bits = (uint32_t)((const uint16_t *)at)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return (double)f;
}

/* Between -0.5 and 0.5, by a generator of this file's own. */
static double draw(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 33) / (double)(1u << 31) - 0.5;
}

/* Values by name alone, so that one block's weight is another's of the same name. */
static void fill_piece(const weft_block_info *t, piece *p, uint64_t salt) {
    uint64_t state = salt;
    for (const char *c = t->name; *c; c++)
        state = state * 31 + (unsigned char)*c;
    for (int i = 0; i < 4; i++)
        draw(&state);
    for (int64_t i = 0; i < t->count; i++)
        put_value(t, p->at, i, strcmp(t->type, "i32") == 0 ? 0 : draw(&state));
}

/* `fill`: what memory that a call writes is full of before: 0xff is NaN. */
void take_memory(memory *m, weft_block *block, uint64_t salt, int fill) {
    *m = (memory){.block = block};
    for (int k = 0; k < 3; k++) {
        m->n[k] = weft_block_count(block, (weft_block_list)k);
        assert_in_range(m->n[k], 0, MEMORY_TENSORS);
        for (int i = 0; i < m->n[k]; i++) {
            weft_block_info *t = &m->info[k][i];
            OK(weft_block_tensor(block, (weft_block_list)k, i, t, sizeof *t));
            assert_int_equal(t->bytes, t->count * value_bytes(t->type));
            m->value[k][i] = new_piece(t->bytes, fill);
            if (k != WEFT_BLOCK_OUTPUTS) fill_piece(t, &m->value[k][i], salt);
            if (t->gradient) m->grad[k][i] = new_piece(t->bytes, fill);
            if (t->gradient && k == WEFT_BLOCK_OUTPUTS) fill_piece(t, &m->grad[k][i], salt + 1);
            m->values[k][i] = m->value[k][i].at;
            m->grads[k][i] = m->grad[k][i].at;
        }
    }
    m->saved = new_piece(weft_block_bytes(block, WEFT_BYTES_SAVED), fill);
    m->forward = new_piece(weft_block_bytes(block, WEFT_BYTES_FORWARD), fill);
    m->backward = new_piece(weft_block_bytes(block, WEFT_BYTES_BACKWARD), fill);
}

void give_memory_back(memory *m) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < m->n[k]; i++) {
            free_piece(&m->value[k][i]);
            free_piece(&m->grad[k][i]);
        }
    free_piece(&m->saved);
    free_piece(&m->forward);
    free_piece(&m->backward);
}

weft_call call_of(memory *m) {
    return (weft_call){.size = sizeof(weft_call),
                       .inputs = m->values[WEFT_BLOCK_INPUTS],
                       .weights = m->values[WEFT_BLOCK_WEIGHTS],
                       .outputs = m->values[WEFT_BLOCK_OUTPUTS],
                       .saved = m->saved.at,
                       .workspace = m->forward.at,
                       .seed = 7,
                       .iteration = 3,
                       .grad_outputs = m->grads[WEFT_BLOCK_OUTPUTS],
                       .grad_inputs = m->grads[WEFT_BLOCK_INPUTS],
                       .grad_weights = m->grads[WEFT_BLOCK_WEIGHTS]};
}

void forward(memory *m) {
    weft_call call = call_of(m);
    OK(weft_block_forward(m->block, &call));
}

void backward(memory *m) {
    weft_call call = call_of(m);
    call.workspace = m->backward.at;
    OK(weft_block_backward(m->block, &call));
}

void check_equal(const memory *a, const memory *b) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < a->n[k]; i++) {
            size_t bytes = (size_t)a->info[k][i].bytes;
            assert_memory_equal(a->values[k][i], b->values[k][i], bytes);
            if (a->grads[k][i]) assert_memory_equal(a->grads[k][i], b->grads[k][i], bytes);
        }
}

int find_tensor(const memory *m, weft_block_list list, const char *name) {
    for (int i = 0; i < m->n[list]; i++)
        if (strcmp(m->info[list][i].name, name) == 0) return i;
    fail_msg("the block has no tensor '%s' in list %d", name, (int)list);
    return -1;
}
