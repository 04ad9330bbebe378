/* How processors lie is read from sysfs, here from folders that are made as Linux makes them; which
 * of them threads are held to follows from that. */
#include "core/topology.h"
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A set by its numbers, which end on -1. */
static cpu_set_t set_of(const int *numbers) {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (; *numbers >= 0; numbers++)
        CPU_SET((size_t)*numbers, &set);
    return set;
}
#define SET(...) set_of((const int[]){__VA_ARGS__, -1})

/* Writes ROOT/NAME, as a line. */
static void put(const char *root, const char *name, const char *text) {
    char path[512], line[256];
    snprintf(path, sizeof path, "%s/%s", root, name);
    *strrchr(path, '/') = '\0';
    shell_succeeds("mkdir -p %s", path);
    path[strlen(path)] = '/';
    int length = snprintf(line, sizeof line, "%s\n", text);
    file_write(path, line, (size_t)length);
}

static void put_core(const char *root, const char *siblings, const int *cpus) {
    for (; *cpus >= 0; cpus++) {
        char name[64];
        snprintf(name, sizeof name, "cpu/cpu%d/topology/thread_siblings_list", *cpus);
        put(root, name, siblings);
    }
}
#define CORE(root, siblings, ...) put_core(root, siblings, (const int[]){__VA_ARGS__, -1})

/* Two sockets of two cores with two threads each, numbered as usual: second threads come last. */
static const char *two_sockets(void) {
    const char *root = scratch_path("two-sockets");
    put(root, "node/online", "0-1");
    put(root, "node/node0/cpulist", "0-1,4-5");
    put(root, "node/node1/cpulist", "2-3,6-7");
    CORE(root, "0,4", 0, 4);
    CORE(root, "1,5", 1, 5);
    CORE(root, "2,6", 2, 6);
    CORE(root, "3,7", 3, 7);
    return root;
}

static weft_topology read_at(const char *root, cpu_set_t allowed) {
    weft_topology t;
    assert_int_equal(weft_topology_read(root, &allowed, &t), WEFT_OK);
    return t;
}

/* The processors in order, as "CPU/CORE/NODE ...". */
static void expect_order(const weft_topology *t, const char *order) {
    char text[512] = "";
    for (int i = 0; i < t->n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d/%d/%d", i ? " " : "",
                 t->list[i].cpu, t->list[i].core, t->list[i].node);
    assert_string_equal(text, order);
}

TEST(test_cores_come_before_second_threads_and_nodes_in_turn) {
    weft_topology t = read_at(two_sockets(), SET(0, 1, 2, 3, 4, 5, 6, 7));
    assert_int_equal(t.nodes, 2);
    assert_int_equal(t.cores, 4);
    expect_order(&t, "0/0/0 2/2/1 1/1/0 3/3/1 4/0/0 6/2/1 5/1/0 7/3/1");
    weft_topology_free(&t);
}

TEST(test_only_allowed_processors_count) {
    weft_topology t = read_at(two_sockets(), SET(1, 5, 6));
    assert_int_equal(t.cores, 2);
    expect_order(&t, "1/1/0 6/6/1 5/1/0");
    weft_topology_free(&t);
    t = read_at(two_sockets(), SET(2, 3, 7)); /* the second socket alone: one node */
    assert_int_equal(t.nodes, 1);
    assert_int_equal(t.cores, 2);
    expect_order(&t, "2/2/0 3/3/0 7/3/0");
    weft_topology_free(&t);
}

TEST(test_nodes_of_memory_alone_and_processors_that_are_off) {
    const char *root = scratch_path("odd");
    put(root, "node/online", "0,2-3");
    put(root, "node/node0/cpulist",
        "0-3");                           /* 2 is off: the mask is without it, and it has no core */
    put(root, "node/node1/cpulist", "1"); /* a node that is off */
    put(root, "node/node2/cpulist", "");  /* memory alone */
    put(root, "node/node3/cpulist", "4-5");
    CORE(root, "0-1", 0, 1);
    CORE(root, "3", 3);
    CORE(root, "4", 4);
    CORE(root, "5", 5);
    weft_topology t = read_at(root, SET(0, 1, 3, 4, 5));
    assert_int_equal(t.nodes, 2);
    assert_int_equal(t.cores, 4);
    expect_order(&t, "0/0/0 4/4/1 3/3/0 5/5/1 1/0/0");
    weft_topology_free(&t);
}

TEST(test_a_machine_that_says_nothing_is_one_node_of_cores) {
    weft_topology t = read_at(scratch_path("nothing"), SET(0, 3, 9));
    assert_int_equal(t.nodes, 1);
    assert_int_equal(t.cores, 3);
    expect_order(&t, "0/0/0 3/3/0 9/9/0");
    weft_topology_free(&t);
}

TEST(test_lists_that_make_no_sense_are_survived) {
    static const char *const lists[] = {"",   "x",   "-", "0-", "7-3", "0-99999999999999999999,1",
                                        "-5", "1,,2"};
    const char *root = scratch_path("broken");
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        put(root, "node/online", lists[i]);
        put(root, "node/node0/cpulist", lists[i]);
        CORE(root, lists[i], 0, 1);
        weft_topology t = read_at(root, SET(0, 1));
        assert_int_equal(t.n, 2);
        assert_int_equal(t.nodes, 1);
        assert_int_equal(t.list[0].cpu, 0);
        weft_topology_free(&t);
    }
}

TEST(test_what_threads_are_held_to) {
    weft_topology two = read_at(two_sockets(), SET(0, 1, 2, 3, 4, 5, 6, 7));
    weft_topology one = read_at(two_sockets(), SET(0, 1, 4, 5));
    const struct {
        const weft_topology *t;
        weft_pin wish;
        int threads;
        weft_pin done;
    } cases[] = {
        {&two, WEFT_PIN_AUTO, 8, WEFT_PIN_NODES},  {&two, WEFT_PIN_AUTO, 4, WEFT_PIN_NODES},
        {&two, WEFT_PIN_AUTO, 3, WEFT_PIN_NONE}, /* others may use the rest */
        {&two, WEFT_PIN_AUTO, 9, WEFT_PIN_NONE}, /* more threads than processors */
        {&two, WEFT_PIN_NODES, 3, WEFT_PIN_NODES}, {&two, WEFT_PIN_NODES, 9, WEFT_PIN_NONE},
        {&two, WEFT_PIN_CORES, 8, WEFT_PIN_CORES}, {&two, WEFT_PIN_CORES, 4, WEFT_PIN_CORES},
        {&two, WEFT_PIN_CORES, 3, WEFT_PIN_NONE},  {&two, WEFT_PIN_CORES, 9, WEFT_PIN_NONE},
        {&two, WEFT_PIN_NONE, 8, WEFT_PIN_NONE},   {&one, WEFT_PIN_AUTO, 4, WEFT_PIN_NONE},
        {&one, WEFT_PIN_NODES, 4, WEFT_PIN_NONE},  {&one, WEFT_PIN_CORES, 2, WEFT_PIN_CORES},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (weft_pin_choose(cases[i].wish, cases[i].threads, cases[i].t) != cases[i].done)
            fail_msg("case %zu", i);
    weft_topology_free(&one);
    weft_topology_free(&two);
}

TEST(test_a_place_is_the_whole_core_or_node) {
    weft_topology t = read_at(two_sockets(), SET(0, 1, 2, 3, 4, 5, 6));
    cpu_set_t place, want = SET(2, 6);
    weft_pin_place(WEFT_PIN_CORES, 1, &t, &place);
    assert_true(CPU_EQUAL(&place, &want));
    want = SET(3); /* 7 is not allowed */
    weft_pin_place(WEFT_PIN_CORES, 3, &t, &place);
    assert_true(CPU_EQUAL(&place, &want));
    want = SET(2, 3, 6);
    weft_pin_place(WEFT_PIN_NODES, 3, &t, &place);
    assert_true(CPU_EQUAL(&place, &want));
    weft_topology_free(&t);
}

TEST(test_the_variable_names_what_is_done) {
    static const char *const names[] = {"", "none", "nodes", "cores"};
    weft_pin wish;
    for (int i = 0; i < 4; i++) {
        setenv("WEFT_PIN", names[i], 1);
        assert_int_equal(weft_pin_wish(&wish), WEFT_OK);
        assert_int_equal(wish, i);
    }
    setenv("WEFT_PIN", "core", 1);
    assert_int_equal(weft_pin_wish(&wish), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "none, nodes or cores"));
    unsetenv("WEFT_PIN");
    assert_int_equal(weft_pin_wish(&wish), WEFT_OK);
    assert_int_equal(wish, WEFT_PIN_AUTO);
}

RUN_TESTS(scratch_setup, scratch_teardown)
