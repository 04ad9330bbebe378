/* The memory of a block's calls (weft/graph.h): each piece with a guard behind it, filled as the test
 * wants, and the two calls. Any failure fails the running test. */
#ifndef WEFT_TESTS_BLOCK_MEMORY_H
#define WEFT_TESTS_BLOCK_MEMORY_H

#include <weft/graph.h>

#include <stdint.h>

/* The engine of a group of tests, on the CPU with two threads: cmocka's setup and teardown. */
extern weft_engine *engine;
int open_engine(void **state);
int close_engine(void **state);

enum { MEMORY_TENSORS = 32, MEMORY_GUARD = 64 };

typedef struct {
    void *at;
    int64_t bytes;
} piece;

piece new_piece(int64_t bytes, int fill);
/* Checks the guard. */
void free_piece(piece *p);

typedef struct {
    weft_block *block;
    int n[3]; /* by weft_block_list, as are the others */
    weft_block_info info[3][MEMORY_TENSORS];
    piece value[3][MEMORY_TENSORS], grad[3][MEMORY_TENSORS], saved, forward, backward;
    void *values[3][MEMORY_TENSORS], *grads[3][MEMORY_TENSORS];
} memory;

/* Inputs, weights and the outputs' gradients drawn by their names and `salt`; what a call writes is full
 * of `fill` before: 0xff is NaN. */
void take_memory(memory *m, weft_block *block, uint64_t salt, int fill);
void give_memory_back(memory *m);

weft_call call_of(memory *m);
void forward(memory *m);
void backward(memory *m);

/* Element i of a tensor as that describes it. */
void put_value(const weft_block_info *t, void *at, int64_t i, double value);
double get_value(const weft_block_info *t, const void *at, int64_t i);

/* The number of the tensor of that name in a list; fails the test where there is none. */
int find_tensor(const memory *m, weft_block_list list, const char *name);

/* Equal bits of all values and gradients. */
void check_equal(const memory *a, const memory *b);

/* For tests: a call that must succeed, and one that must not. */
#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != WEFT_OK) fail_msg("%s: %s", #call, weft_error_message());                    \
    } while (0)
void refused(weft_status got, weft_status want, const char *text);

#endif
