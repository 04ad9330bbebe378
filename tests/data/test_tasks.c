/* The synthetic tasks, their sequences read back by other means than made them. */
#include "data/tasks.h"
#include "support/bigram.h"
#include "support/command.h"
#include "support/test.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TIME_MAX = 2048 };

static int32_t tokens[TIME_MAX], targets[TIME_MAX];
static uint8_t scored[TIME_MAX];

static const int64_t TIMES[] = {7, 8, 9, 10, 11, 12, 13, 31, 64, 127, 128, 500, 1024, 2048};

static weft_sequence_place place(uint32_t sequence) {
    return (weft_sequence_place){.split = sequence % 3 ? WEFT_SPLIT_TRAIN : WEFT_SPLIT_VAL,
                                 .seed = 5,
                                 .iteration = sequence / 7,
                                 .sequence = sequence};
}

static weft_status fill(weft_task_fill *task, const char *name, int64_t vocab,
                        const weft_sequence_place *p, int64_t time, int32_t *out, uint8_t *marks) {
    weft_sheet s = weft_sheet_open(name, p, time, out, targets, marks);
    return task(&(weft_task_shape){.vocab = vocab}, &s);
}

TEST(test_recall_repeats_its_first_half) {
    for (size_t i = 0; i < sizeof TIMES / sizeof *TIMES; i++) {
        int64_t time = TIMES[i], half = time / 2;
        weft_sequence_place p = place((uint32_t)i);
        fill(weft_recall_fill, "recall", 1024, &p, time, tokens, scored);
        for (int64_t t = 0; t < time; t++) {
            assert_in_range(tokens[t], 0, 1023);
            if (t + half < time) assert_int_equal(tokens[t + half], tokens[t]);
            if (t + 1 < time) assert_int_equal(targets[t], tokens[t + 1]);
            assert_int_equal(scored[t], t >= half);
            if (scored[t]) assert_int_equal(targets[t], tokens[t + 1 - half]);
        }
    }
}

TEST(test_recall_takes_any_size) {
    weft_sequence_place p = place(1);
    for (int64_t time = 1; time < 6; time++)
        for (int64_t vocab = 1; vocab < 4; vocab++) {
            memset(targets, -1, sizeof targets);
            fill(weft_recall_fill, "recall", vocab, &p, time, tokens, NULL);
            for (int64_t t = 0; t < time; t++) {
                assert_in_range(tokens[t], 0, vocab - 1);
                assert_in_range(targets[t], 0, vocab - 1);
            }
            assert_int_equal(targets[time], -1);
        }
}

/* Every token comes, about as often as any other. */
TEST(test_recall_halves_are_uniform) {
    int counts[1024] = {0};
    for (uint32_t s = 0; s < 512; s++) {
        weft_sequence_place p = place(s);
        fill(weft_recall_fill, "recall", 1024, &p, 512, tokens, NULL);
        for (int64_t t = 0; t < 256; t++)
            counts[tokens[t]]++;
    }
    double chi = 0;
    for (int i = 0; i < 1024; i++)
        chi += (counts[i] - 128.0) * (counts[i] - 128.0) / 128.0;
    assert_true(chi > 1023 - 6 * sqrt(2 * 1023) && chi < 1023 + 6 * sqrt(2 * 1023));
}

/* The tree as the sequence gives it: parents by label, -1 for none; how many edges. */
static int64_t read_edges(int64_t time, int32_t parents[WEFT_ENTAILMENT_VOCAB]) {
    for (int i = 0; i < WEFT_ENTAILMENT_VOCAB; i++)
        parents[i] = -1;
    int64_t at = 0;
    while (at + 2 < time && tokens[at] == WEFT_ENTAILMENT_EDGE) {
        int32_t child = tokens[at + 1], parent = tokens[at + 2];
        assert_in_range(child, WEFT_ENTAILMENT_LABEL, WEFT_ENTAILMENT_VOCAB - 1);
        assert_in_range(parent, WEFT_ENTAILMENT_LABEL, WEFT_ENTAILMENT_VOCAB - 1);
        assert_int_equal(parents[child], -1);
        parents[child] = parent;
        at += 3;
    }
    return at / 3;
}

/* From every node a walk up ends at one and the same root. */
static void check_tree(const int32_t *parents, int64_t edges) {
    int32_t root = -1;
    int64_t nodes = 0;
    bool is_node[WEFT_ENTAILMENT_VOCAB] = {false};
    for (int32_t i = 0; i < WEFT_ENTAILMENT_VOCAB; i++)
        if (parents[i] >= 0) is_node[i] = is_node[parents[i]] = true;
    for (int32_t i = 0; i < WEFT_ENTAILMENT_VOCAB; i++) {
        if (!is_node[i]) continue;
        nodes++;
        int32_t top = i;
        for (int64_t steps = 0; parents[top] >= 0; steps++) {
            assert_true(steps <= edges);
            top = parents[top];
        }
        if (root < 0) root = top;
        assert_int_equal(top, root);
    }
    assert_int_equal(nodes, edges + 1);
}

static bool walk_up(const int32_t *parents, int32_t from, int32_t to) {
    while ((from = parents[from]) >= 0)
        if (from == to) return true;
    return false;
}

typedef struct {
    int64_t yes, no, reversed;
} answers;

static void check_queries(int64_t time, int64_t at, const int32_t *parents, answers *count) {
    int64_t expected = 0;
    for (int64_t t = at; t < time; t += 4) {
        assert_int_equal(tokens[t], WEFT_ENTAILMENT_QUERY);
        if (t + 2 >= time) break;
        int32_t a = tokens[t + 1], b = tokens[t + 2];
        assert_int_not_equal(a, b);
        bool yes = walk_up(parents, a, b);
        assert_int_equal(targets[t + 2], yes ? WEFT_ENTAILMENT_YES : WEFT_ENTAILMENT_NO);
        assert_int_equal(scored[t + 2], 1);
        if (t + 3 < time) assert_int_equal(tokens[t + 3], targets[t + 2]);
        expected++;
        *(yes ? &count->yes : &count->no) += 1;
        count->reversed += !yes && walk_up(parents, b, a);
    }
    assert_true(expected >= 1);
    for (int64_t t = 0; t < time; t++) {
        assert_int_equal(scored[t], targets[t] >= 0);
        expected -= scored[t];
    }
    assert_int_equal(expected, 0);
}

TEST(test_entailment_answers_are_right) {
    answers count = {0};
    for (size_t i = 0; i < sizeof TIMES / sizeof *TIMES; i++)
        for (uint32_t s = 0; s < 60; s++) {
            int64_t time = TIMES[i];
            int32_t parents[WEFT_ENTAILMENT_VOCAB];
            weft_sequence_place p = place(s);
            assert_int_equal(fill(weft_entailment_fill, "entailment", 0, &p, time, tokens, scored),
                             WEFT_OK);
            int64_t edges = read_edges(time, parents);
            assert_in_range(edges, 1, 31);
            check_tree(parents, edges);
            check_queries(time, edges * 3, parents, &count);
        }
    double all = (double)(count.yes + count.no);
    assert_true(all > 20000);
    assert_true(fabs((double)count.yes / all - 0.5) < 0.02);
    assert_true((double)count.reversed / all > 0.24);
}

TEST(test_entailment_trees_differ) {
    static int32_t other[TIME_MAX];
    weft_sequence_place p = {.split = WEFT_SPLIT_TRAIN, .seed = 0}, q = p;
    fill(weft_entailment_fill, "entailment", 0, &p, 128, other, NULL);
    for (int what = 0; what < 4; what++) {
        q = p;
        if (what == 0) q.seed++;
        if (what == 1) q.iteration++;
        if (what == 2) q.sequence++;
        if (what == 3) q.split = WEFT_SPLIT_VAL;
        fill(weft_entailment_fill, "entailment", 0, &q, 128, tokens, NULL);
        assert_memory_not_equal(tokens, other, 128 * sizeof *tokens);
    }
}

TEST(test_entailment_of_too_few_tokens_is_refused) {
    weft_sequence_place p = place(0);
    for (int64_t time = 1; time < WEFT_ENTAILMENT_TIME; time++) {
        assert_int_equal(fill(weft_entailment_fill, "entailment", 0, &p, time, tokens, scored),
                         WEFT_EINPUT);
        assert_non_null(strstr(weft_error_message(), "at least 7 tokens"));
    }
}

/* tokens and the last target as text. */
static char *needle_text(uint32_t sequence, weft_split split, int64_t time) {
    static char text[1100];
    weft_sequence_place p = {.split = split, .seed = 3, .iteration = 5, .sequence = sequence};
    assert_int_equal(fill(weft_needle_fill, "needle", 0, &p, time, tokens, scored), WEFT_OK);
    for (int64_t t = 0; t < time; t++) {
        text[t] = (char)tokens[t];
        if (t > 0) assert_int_equal(targets[t - 1], tokens[t]);
    }
    text[time] = (char)targets[time - 1];
    text[time + 1] = '\0';
    return text;
}

TEST(test_needle_asks_for_the_key_in_the_text) {
    static const char line[] = "\nThe pass key is ", rest[] = ". Remember it. ",
                      behind[] = " is the pass key.\n",
                      question[] = "\nWhat is the pass key? The pass key is ";
    double first = 1, last = 0;
    for (uint32_t i = 0; i < 200; i++) {
        int64_t time = i % 2 ? 1000 : 128;
        char *text = needle_text(i, WEFT_SPLIT_TRAIN, time);
        char *at = strstr(text, line), *end = text + time + 1 - 5;
        assert_non_null(at);
        assert_null(strstr(at + 1, line));
        const char *key = at + strlen(line), *again = key + 5 + strlen(rest);
        assert_memory_equal(key + 5, rest, strlen(rest));
        assert_memory_equal(again, key, 5);
        assert_memory_equal(again + 5, behind, strlen(behind));
        /* The text ends with the question and the same five digits, which are scored. */
        assert_memory_equal(end, at + strlen(line), 5);
        assert_memory_equal(end - strlen(question), question, strlen(question));
        for (int64_t t = 0; t < time; t++)
            assert_int_equal(scored[t], t >= time - 5);
        first = fmin(first, (double)(at - text) / (double)time);
        last = fmax(last, (double)(at - text) / (double)time);
    }
    assert_true(first < 0.02 && last > 0.8);
    char own[1100];
    snprintf(own, sizeof own, "%s", needle_text(1, WEFT_SPLIT_TRAIN, 500));
    assert_string_not_equal(own, needle_text(1, WEFT_SPLIT_VAL, 500));
    weft_sequence_place p = {.split = WEFT_SPLIT_VAL};
    assert_int_equal(fill(weft_needle_fill, "needle", 0, &p, 127, tokens, NULL), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "at least 128 bytes"));
}

/* tests/vectors/tasks.json.gz has sequences of tests/reference/make_task_vectors.py, which draws them by code of its own
 * and checks that what is asked for can be told from the tokens. */
TEST(test_sequences_are_the_references) {
    json_t *vectors = file_json("tests/vectors/tasks.json.gz"), *row;
    static weft_config c;
    size_t i;
    int seen = 0;
    json_array_foreach(json_object_get(vectors, "cases"), i, row) {
        const json_t *expected = json_object_get(row, "tokens");
        const char *task = json_string_value(json_object_get(row, "task")), *split;
        int64_t time = (int64_t)json_array_size(expected), number[5];
        double noise;
        weft_dataset *d;
        assert_int_equal(json_unpack(row, "{s:I, s:I, s:I, s:I, s:I, s:F, s:s}", "vocab",
                                     &number[0], "size", &number[1], "seed", &number[2],
                                     "iteration", &number[3], "sequence", &number[4], "noise",
                                     &noise, "split", &split),
                         0);
        weft_config_defaults(&c);
        weft_config_set(&c, "DATASET", task, "test");
        c.vocab_size = number[0];
        c.task_size = number[1];
        c.task_noise = noise;
        c.context = time;
        if (weft_dataset_open(&c, &d) != WEFT_OK) fail_msg("%s", weft_error_message());
        assert_int_equal(
            weft_dataset_fill(d, strcmp(split, "val") == 0 ? WEFT_SPLIT_VAL : WEFT_SPLIT_TRAIN,
                              (uint64_t)number[2], (uint32_t)number[3], (uint32_t)number[4], time,
                              tokens, targets, scored),
            WEFT_OK);
        for (int64_t t = 0; t < time; t++) {
            const json_t *target = json_array_get(json_object_get(row, "targets"), (size_t)t);
            if (tokens[t] != json_integer_value(json_array_get(expected, (size_t)t)) ||
                targets[t] != json_integer_value(target))
                fail_msg("%s, case %zu: token %d and target %d at %d", task, i, (int)tokens[t],
                         (int)targets[t], (int)t);
            assert_int_equal(scored[t], targets[t] >= 0);
        }
        char metric[64];
        snprintf(metric, sizeof metric, "%s_accuracy", task);
        assert_string_equal(weft_dataset_metric(d), metric);
        weft_dataset_close(d);
        seen++;
    }
    assert_int_equal(seen, 16);
    json_decref(vectors);
}

/* Vocabulary and context that have just room for a size of 8, and with one less. */
TEST(test_a_size_that_has_no_room_is_refused) {
    static const struct {
        const char *task;
        int64_t vocab, time;
    } least[] = {
        {"mqar", 16, 17}, {"induction", 24, 3}, {"copying", 3, 16}, {"compression", 11, 10}};
    static weft_config c;
    for (size_t i = 0; i < 3 * sizeof least / sizeof *least; i++) {
        weft_dataset *d;
        weft_config_defaults(&c);
        weft_config_set(&c, "DATASET", least[i / 3].task, "test");
        c.task_size = 8;
        c.vocab_size = least[i / 3].vocab - (i % 3 == 1);
        c.context = least[i / 3].time - (i % 3 == 2);
        weft_status status = weft_dataset_open(&c, &d);
        assert_int_equal(status, i % 3 ? WEFT_EINPUT : WEFT_OK);
        if (i % 3) {
            assert_non_null(strstr(weft_error_message(), "TASK_SIZE=8 takes a VOCAB_SIZE of "));
            continue;
        }
        weft_sequence_place p = place(1);
        assert_int_equal(weft_dataset_fill(d, p.split, p.seed, p.iteration, p.sequence, c.context,
                                           tokens, targets, scored),
                         WEFT_OK);
        assert_int_equal(weft_dataset_fill(d, p.split, p.seed, p.iteration, p.sequence,
                                           c.context - 1, tokens, targets, scored),
                         WEFT_EINPUT);
        weft_dataset_close(d);
    }
}

/* The last token alone tells nothing of either task: a bigram model has to guess. */
TEST(test_tasks_need_attention) {
    static weft_config c;
    static const char *const names[] = {"recall", "entailment"};
    static const double guess[] = {6.931471805599453, 0.6931471805599453};
    for (int i = 0; i < 2; i++) {
        weft_config_defaults(&c);
        weft_config_set(&c, "DATASET", names[i], "test");
        weft_dataset *d;
        double loss;
        assert_int_equal(weft_dataset_open(&c, &d), WEFT_OK);
        assert_int_equal(weft_bigram_loss(d, 1, 1 << 20, 1 << 16, &loss), WEFT_OK);
        print_message("%s: bigram loss %.4f, guessing %.4f\n", names[i], loss, guess[i]);
        assert_true(loss > guess[i] - 0.01 && loss < guess[i] + 0.7);
        weft_dataset_close(d);
    }
}

RUN_TESTS(NULL, NULL)
