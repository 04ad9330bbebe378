/* Every study in defconfigs/: it says what it is, all its variants can be built, and it survives
 * kconfiglib and the program alike. What a config's comment claims of sizes is held here too. */
#include "cpu/backend.h"
#include "study/study.h"
#include "support/command.h"
#include "support/test.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SENTENCE_MOST = 110 };

enum { NAMES_MOST = 64, NAME_ROOM = 64 };

/* Every file there is, a user's own too. */
static char names[NAMES_MOST][NAME_ROOM];
static int n_names;

/* Those that the documentation speaks of. */
static const char *const known[] = {"demo",          "gpt2-ra-mla-full",
                                    "gpt2-real",     "gpt2-vanilla-baseline",
                                    "ra-mla-tying",  "ra-mla-sparse",
                                    "ra-mla-latent", "ra-mla-optim",
                                    "w2-recall",     "w2-entailment",
                                    "needle",        "mup",
                                    "w2-micro",      "wsffn",
                                    "mix",           "long-context",
                                    "reciprocal",    "ra-mla",
                                    "mqar",          "induction",
                                    "copying",       "compression",
                                    "prune",         "write-ups-next",
                                    "presets"};

static bool is_known(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(name, known[i]) == 0) return true;
    return false;
}

/* What `make savedefconfig NAME=` wrote begins with an option: it is the reader's own, until a comment says
 * what it is for. */
static bool is_own(const char *name) {
    WEFT_AUTO_FREE char *text = file_read(format_text("defconfigs/%.63s", name), NULL);
    bool own = *text != '#' && !is_known(name);
    return own;
}

static void list_names(void) {
    DIR *folder = opendir("defconfigs");
    assert_non_null(folder);
    for (const struct dirent *e; (e = readdir(folder));) {
        if (e->d_name[0] == '.' || is_own(e->d_name)) continue;
        assert_true(n_names < NAMES_MOST && strlen(e->d_name) < NAME_ROOM);
        snprintf(names[n_names++], NAME_ROOM, "%.*s", NAME_ROOM - 1, e->d_name);
    }
    closedir(folder);
}

/* A study as it would be run, with the program's own text in place of what must be downloaded. */
static weft_study *open_study(const char *name) {
    static char path[128];
    static const weft_override embedded = {"DATASET=embedded", "-o"};
    snprintf(path, sizeof path, "defconfigs/%s", name);
    weft_source source = {path, &embedded, strncmp(name, "gpt2-", 5) == 0};
    weft_study *s;
    if (weft_study_open(&source, weft_cpu_backend(), 1, &s) != WEFT_OK)
        fail_msg("%s: %s", name, weft_error_message());
    return s;
}

static const weft_study_variant *variant_of(const weft_study *s, const char *name) {
    int i = weft_variants_find(&s->variants, name);
    if (i < 0) fail_msg("%s has no variant %s", s->name, name);
    return &s->built[i];
}

static int64_t parameters_of(const weft_study *s, const char *name) {
    return variant_of(s, name)->account.parameters;
}

TEST(test_every_study_of_the_documentation_is_there) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        int k = 0;
        while (k < n_names && strcmp(names[k], known[i]) != 0)
            k++;
        if (k == n_names) fail_msg("there is no defconfigs/%s", known[i]);
    }
}

TEST(test_each_has_its_question_needs_and_time) {
    for (int i = 0; i < n_names; i++) {
        const char *path = format_text("defconfigs/%.63s", names[i]);
        WEFT_AUTO_FREE char *text = file_read(path, NULL);
        size_t line = strcspn(text, "\n");
        if (strncmp(text, "# ", 2) != 0 || line > SENTENCE_MOST || !strchr(".?", text[line - 1]))
            fail_msg("%s does not begin with a sentence of one line", path);
        if (!strstr(text, "\n# Needs ")) fail_msg("%s does not say what it needs", path);
        bool timed = strstr(text, " on 2 cores") || strstr(text, " a GPU");
        if (!timed) fail_msg("%s does not say how long it takes", path);
    }
}

TEST(test_every_variant_of_each_can_be_built) {
    int variants = 0;
    for (int i = 0; i < n_names; i++) {
        weft_study *s = open_study(names[i]);
        for (int k = 0; k < s->variants.n; k++, variants++)
            if (*s->built[k].error)
                fail_msg("%s: variant %s: %s", names[i], s->variants.list[k].name,
                         s->built[k].error);
        weft_study_close(s);
    }
    printf("note: %d studies of %d variants\n", n_names, variants);
}

TEST(test_those_of_a_few_cores_have_three_seeds) {
    for (int i = 0; i < n_names; i++) {
        if (strncmp(names[i], "gpt2-", 5) == 0) continue;
        weft_study *s = open_study(names[i]);
        if (s->base.study_seeds < 3) fail_msg("%s has fewer than 3 seeds", names[i]);
        /* A mean of training losses is of the steps that are logged. */
        if (s->base.study_score == WEFT_STUDY_SCORE_TRAIN_LOSS && s->base.log_interval != 1)
            fail_msg("%s scores the training loss, and does not log every step", names[i]);
        weft_study_close(s);
    }
}

/* Through make defconfig-NAME's reader and writer and back: every option is what the file says. */
TEST(test_each_comes_back_from_kconfiglib) {
    const char *command = format_text("scripts/python-with kconfiglib >%s", scratch_path("python"));
    if (system(command) != 0) { /* NOLINT */
        printf("no python3 here has kconfiglib (scripts/setup study installs it)\n");
        skip();
    }
    for (int i = 0; i < n_names; i++) {
        weft_config is, back;
        const char *path = format_text("defconfigs/%.63s", names[i]);
        command = format_text(
            "top=$PWD && cp Kconfig %s && cd %s && "
            "\"$(cat python)\" \"$top/scripts/kconfig.py\" defconfig \"$top/%s\" >/dev/null",
            scratch_path("."), scratch_path("."), path);
        if (system(command) != 0) fail_msg("%s is refused", path); /* NOLINT */
        weft_config_defaults(&is);
        weft_config_defaults(&back);
        if (weft_config_read(&is, path) != WEFT_OK ||
            weft_config_read(&back, scratch_path(".config")) != WEFT_OK)
            fail_msg("%s", weft_error_message());
        int count;
        const weft_option *options = weft_options(&count);
        for (int k = 0; k < count; k++) {
            char was[WEFT_TEXT_MAX], now[WEFT_TEXT_MAX];
            weft_config_format(&is, &options[k], was, sizeof was);
            weft_config_format(&back, &options[k], now, sizeof now);
            if (strcmp(was, now) != 0) fail_msg("%s: %s: %s", path, options[k].key, now);
        }
    }
}

TEST(test_wide_rows_have_the_parameters_of_what_they_stand_beside) {
    weft_study *s = open_study("reciprocal");
    const char *const pairs[][2] = {{"wide2", "2"}, {"wide3", "3"}};
    for (int i = 0; i < 2; i++) {
        double wide = (double)parameters_of(s, pairs[i][0]),
               with = (double)parameters_of(s, pairs[i][1]);
        if (fabs(wide / with - 1) > 1e-3) fail_msg("%s: %.0f, %.0f", pairs[i][0], wide, with);
    }
    weft_study_close(s);
}

TEST(test_equal_parameters_are_equal_to_a_hundredth) {
    const char *const equal[] = {"ra-mla-latent", "mix"};
    for (int i = 0; i < 2; i++) {
        weft_study *s = open_study(equal[i]);
        for (int k = 1; k < s->variants.n; k++) {
            double ratio =
                (double)s->built[k].account.parameters / (double)s->built[0].account.parameters;
            if (fabs(ratio - 1) > 0.01)
                fail_msg("%s: variant %s has %g of the parameters", equal[i],
                         s->variants.list[k].name, ratio);
        }
        weft_study_close(s);
    }
}

/* The W2 write-up's 43% is of width 64 against width 96. */
TEST(test_w2_recall_is_the_write_ups_setting) {
    weft_study *s = open_study("w2-recall");
    double saved = 1 - (double)parameters_of(s, "w2-64") / (double)parameters_of(s, "dot96");
    printf("note: width 64 has %.1f%% fewer parameters than width 96\n", 100 * saved);
    assert_true(saved > 0.40 && saved < 0.50);
    assert_int_equal(s->variants.n, 8);
    assert_int_equal(s->n_rates, 3);
    for (int i = 0; i < s->variants.n; i++) {
        const weft_config *c = &s->built[i].config;
        assert_int_equal(weft_config_head_dim(c), 16);
        assert_int_equal(weft_config_ffn_dim(c), 4 * c->n_embd);
        assert_int_equal(c->context, 2 * 64);
        assert_int_equal(c->vocab_size, 1024);
        assert_int_equal(c->batch_size, 32);
        assert_int_equal(c->steps, 500);
        assert_false(c->weight_tying || c->bias);
    }
    weft_study_close(s);
}

TEST(test_full_study_is_at_gpt2s_size) {
    weft_study *s = open_study("gpt2-vanilla-baseline");
    /* GPT-2's 124,439,808, with 47 rows of 768 more in the padded vocabulary. */
    assert_int_equal(s->built[0].account.parameters, 124439808 + (50304 - 50257) * 768);
    weft_study_close(s);
    s = open_study("gpt2-ra-mla-full");
    assert_int_equal(s->variants.n, 6);
    assert_int_equal(s->built[0].config.n_embd, 768);
    assert_int_equal(s->built[0].config.steps, 10400);
    weft_study_close(s);
}

TEST(test_missing_text_says_how_to_get_it) {
    weft_source source = {"defconfigs/gpt2-ra-mla-full", NULL, 0};
    static const weft_override nowhere = {"DATASET=/nowhere/fineweb-edu", "-o"};
    source.overrides = &nowhere;
    source.n_overrides = 1;
    weft_study *s = NULL;
    assert_int_equal(weft_study_open(&source, weft_cpu_backend(), 1, &s), WEFT_EINPUT);
    const char *const words[] = {"/nowhere/fineweb-edu",  "No such file",
                                 "stream_dataset.py",     "build/weft tokenize",
                                 "--tokenizer data/gpt2", "--out /nowhere/fineweb-edu"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (!strstr(weft_error_message(), words[i]))
            fail_msg("no '%s' in: %s", words[i], weft_error_message());
}

/* What stands for the network: a dataset of 4,000 texts and a model's tokenizer, under the names of the packages
 * that fetch the real ones. */
static void make_packages(void) {
    static const char datasets[] =
        "def load_dataset(source, name, split, streaming):\n"
        "    assert (source, name, split, streaming) == "
        "('HuggingFaceFW/fineweb-edu', 'sample-10BT', 'train', True)\n"
        "    return ({'text': f'document {i} of a few words', 'id': i} for i in range(4000))\n";
    static const char hub[] = "import os\n"
                              "def hf_hub_download(model, file):\n"
                              "    assert (model, file) == "
                              "('openai-community/gpt2', 'tokenizer.json')\n"
                              "    return os.path.join(os.path.dirname(__file__), file)\n";
    const char *words = scratch_path("words"), *tokenizer = scratch_path("packages/tokenizer.json");
    file_write(words, "document of a few words, document of a few words", 48);
    shell_succeeds("mkdir %s", scratch_path("packages"));
    file_write(scratch_path("packages/datasets.py"), datasets, sizeof datasets - 1);
    file_write(scratch_path("packages/huggingface_hub.py"), hub, sizeof hub - 1);
    SUCCEEDS("tokenizer", "train", "--vocab", "270", "--out", tokenizer, words);
}

/* In a tree that has been built and has no data yet. */
TEST(test_the_text_of_the_full_study_is_made_as_printed) {
    const char *program = getenv("WEFT");
    if (system("command -v python3 >/dev/null 2>&1") != 0) {
        printf("there is no python3\n");
        skip();
    }
    const char *tree = scratch_path("tree");
    make_packages();
    shell_succeeds("mkdir -p %s/build && ln -s \"$PWD\"/scripts \"$PWD\"/defconfigs %s && "
                   "ln -s \"$(realpath %s)\" %s/build/weft",
                   tree, tree, program ? program : "build/weft", tree);
    const char *list = "build/weft study --config defconfigs/gpt2-ra-mla-full --list";
    shell_succeeds("cd %s && ! %s 2>said >listed", tree, list);
    WEFT_AUTO_FREE char *said = file_read(scratch_path("tree/said"), NULL);
    char *recipe = strstr(said, "there by: ");
    assert_non_null(recipe);
    char *end = strstr(recipe, " ; or take");
    assert_non_null(end);
    *end = 0;
    shell_succeeds("cd %s && export PYTHONPATH=%s && { %s; } >made 2>&1", tree,
                   scratch_path("packages"), recipe + strlen("there by: "));
    shell_succeeds("cd %s && %s >listed && test -s data/fineweb-edu/train_000000.bin -a -s "
                   "data/fineweb-edu/val_000000.bin",
                   tree, list);
}

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    list_names();
    return 0;
}

RUN_TESTS(open_scratch, scratch_teardown)
