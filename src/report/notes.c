/* What a reader must know before believing the numbers: what differs between the variants' configs,
 * what went wrong, what was not equal, where it was run. */
#include "base/json.h"
#include "report/sections.h"

#include "config/config.h"

#include <ctype.h>
#include <jansson.h>
#include <math.h>

/* Keys are told apart by their name in config.json. Numbers that are equal read equal. */
static void set_value(json_t *config, const char *name, const char *value) {
    char key[WEFT_SETTING_KEY], plain[32], *end;
    const weft_option *option = weft_option_find(name);
    snprintf(key, sizeof key, "%s", name);
    if (option) weft_option_json_key(option, key, sizeof key);
    double number = strtod(value, &end);
    snprintf(plain, sizeof plain, "%.12g", number);
    json_t *text = json_string(end != value && !*end && isfinite(number) ? plain : value);
    if (text) json_object_set_new(config, key, text); /* NULL: it is no UTF-8, and left out */
}

static void read_settings(json_t *config, const char *text, char end) {
    char key[WEFT_SETTING_KEY], value[WEFT_SETTING_VALUE];
    while (weft_next_setting(&text, end, key, value)) {
        size_t n = strlen(value);
        bool quoted = n > 1 && *value == '"' && value[n - 1] == '"';
        if (quoted) value[n - 1] = '\0';
        if (*key && *key != '#') set_value(config, key, value + quoted);
    }
}

static void read_json(json_t *config, const char *text) {
    WEFT_AUTO_DECREF json_t *object = weft_config_kept(text);
    json_t *value;
    const char *name;
    json_object_foreach(object, name, value) {
        char number[64];
        if (json_is_boolean(value))
            set_value(config, name, json_is_true(value) ? "y" : "n");
        else if (json_is_string(value))
            set_value(config, name, json_string_value(value));
        else if (json_is_number(value)) {
            snprintf(number, sizeof number, "%.17g", json_number_value(value));
            set_value(config, name, number);
        }
    }
}

/* A variant's whole config: its run's at the rate chosen, or the base with the variant's overrides. */
static json_t *variant_config(const weft_report_data *d, int variant) {
    json_t *config = json_object();
    if (!config) return NULL;
    read_settings(config, d->config, '\n');
    read_settings(config, d->variants[variant].overrides, ' ');
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        if (run->variant != variant ||
            (run->rate != d->variants[variant].rate && d->variants[variant].done))
            continue;
        read_json(config, run->config);
        break;
    }
    return config;
}

/* What is the whole study's is no difference between variants; seeds belong to runs. */
static bool is_left_out(const char *key) {
    const weft_option *option = weft_option_find(key);
    return option && option->owner == WEFT_OWNER_STUDY;
}

static const char *value_of(const json_t *configs, size_t i, const char *key) {
    const char *value = json_string_value(json_object_get(json_array_get(configs, i), key));
    return value ? value : "";
}

static bool differs(const json_t *configs, const char *key) {
    for (size_t i = 1; i < json_array_size(configs); i++)
        if (strcmp(value_of(configs, 0, key), value_of(configs, i, key)) != 0) return true;
    return false;
}

weft_status weft_report_differences(weft_page *p, const weft_report_data *d) {
    WEFT_AUTO_DECREF json_t *configs = json_array(), *keys = json_object();
    json_t *unused;
    const char *key;
    bool open = false;
    for (int i = 0; i < d->n_variants; i++) {
        json_t *config = variant_config(d, i);
        json_object_update_missing(keys, config);
        json_array_append_new(configs, config);
    }
    if (d->n_variants > 1)
        weft_page_fold(p, "What differs between the configs",
                       "Every key whose value is not the same in all variants; the rest is alike.");
    json_object_foreach(keys, key, unused) {
        if (is_left_out(key) || !differs(configs, key)) continue;
        if (!open) weft_report_open_table(p, d, "key", NULL);
        open = true;
        char name[WEFT_SETTING_KEY];
        size_t n = 0;
        for (; key[n]; n++)
            name[n] = (char)toupper((unsigned char)key[n]);
        name[n] = '\0';
        weft_page_cell(p, "%s", name);
        for (int i = 0; i < d->n_variants; i++)
            weft_page_cell(p, "%s", value_of(configs, (size_t)i, key));
    }
    if (d->n_variants > 1 && !open)
        weft_page_say(p, "The variants' configs are the same in every key.");
    bool memory = keys && json_array_size(configs) == (size_t)d->n_variants;
    return memory ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for the configs");
}

/* Rows of the table of trouble; it is opened by the first. */
typedef struct {
    weft_page *p;
    const weft_report_data *d;
    int rows;
} trouble;

static void trouble_row(trouble *t, int variant, const char *where, const char *what,
                        const char *why) {
    if (t->rows++ == 0) weft_page_table_open(t->p, "variant|where|what|why");
    weft_page_cells(t->p, variant >= 0 ? t->d->variants[variant].label : "–", where, what, why);
}

static const char *say_where(const weft_report_run *run) {
    return weft_say("seed %lld, learning rate %g", (long long)run->seed, run->rate);
}

static void run_trouble(trouble *t, const weft_report_run *run) {
    const char *where = say_where(run);
    int spikes = 0;
    for (int i = 0; i < t->d->n_events; i++)
        spikes += t->d->events[i].run == run->id && strcmp(t->d->events[i].kind, "spike") == 0;
    if (strcmp(run->status, "failed") == 0 || strcmp(run->status, "diverged") == 0)
        trouble_row(t, run->variant, where, run->status, run->why);
    else if (strcmp(run->status, "done") == 0 && !run->finished)
        trouble_row(t, run->variant, where, "has no score", run->why);
    if (run->skipped > 0)
        trouble_row(t, run->variant, where, weft_say("%.0f updates skipped", run->skipped),
                    "their gradients were not finite");
    if (spikes)
        trouble_row(t, run->variant, where, weft_say_plural(spikes, "spike"),
                    "the gradient norm stood far out");
    if (run->resumes > 0)
        trouble_row(t, run->variant, where,
                    weft_say("resumed %s", weft_say_plural((int)run->resumes, "time")),
                    "harmless: it was stopped, and continued from its checkpoint");
}

/* Of a kind that another part of the report tells, or that is no trouble. */
static bool is_told(const char *kind) {
    static const char *const told[] = {"spike",    "reset",  "skipped", "started", "resumed",
                                       "killed",   "failed", "equal",   "unequal", "stopped",
                                       "diverged", "leaks",  "pruned"};
    for (size_t i = 0; i < sizeof told / sizeof told[0]; i++)
        if (strcmp(kind, told[i]) == 0) return true;
    return false;
}

weft_status weft_report_trouble(weft_page *p, const weft_report_data *d) {
    weft_page_heading(p, "What leaked, was skipped, failed or diverged",
                      "What went wrong, so that no number is trusted more than it deserves.");
    trouble t = {p, d, 0};
    for (int i = 0; i < d->n_variants; i++) {
        if (*d->variants[i].error)
            trouble_row(&t, i, "config", "cannot be built", d->variants[i].error);
        if (d->variants[i].leaks)
            trouble_row(&t, i, "every run", "LEAKS",
                        "a token sees later ones, so its score is not one of prediction");
        /* Runs that are still to come, a line per variant. */
        int waiting = 0, running = 0;
        for (int k = 0; k < d->n_runs; k++) {
            const weft_report_run *run = &d->runs[k];
            waiting += run->variant == i && strcmp(run->status, "waiting") == 0;
            running += run->variant == i && strcmp(run->status, "running") == 0;
        }
        if (waiting || running)
            trouble_row(&t, i, "runs", weft_say("%d waiting, %d running", waiting, running),
                        "the study is not finished");
    }
    for (int i = 0; i < d->n_runs; i++)
        run_trouble(&t, &d->runs[i]);
    for (int i = 0; i < d->n_events; i++) {
        const weft_report_event *event = &d->events[i];
        if (is_told(event->kind)) continue;
        int variant = -1;
        const char *where = "study";
        for (int k = 0; k < d->n_runs && event->run >= 0; k++) {
            if (d->runs[k].id != event->run) continue;
            variant = d->runs[k].variant;
            where = say_where(&d->runs[k]);
        }
        for (int k = 0; k < d->n_variants && event->run < 0; k++)
            if (d->variants[k].id == event->step) variant = k;
        trouble_row(&t, variant, where, event->kind, event->detail);
    }
    if (!t.rows && d->n_runs)
        weft_page_say(
            p, "Nothing: every variant could be built, none leaks, every run finished and no "
               "update was skipped.");
    else if (!t.rows)
        weft_page_say(p, "Nothing yet: no run was made.");
    return WEFT_OK;
}

static const struct {
    const char *name, *head;
    size_t at; /* of a variant */
} quantities[] = {
    {"iterations", "iterations", offsetof(weft_report_variant, iters)},
    {"tokens", "tokens", offsetof(weft_report_variant, tokens)},
    {"parameters", "parameters", offsetof(weft_report_variant, parameters)},
    {"FLOPs of the whole training", "FLOPs of the training", offsetof(weft_report_variant, work)},
    {"measured time", "seconds a run", offsetof(weft_report_variant, seconds)},
};
enum { QUANTITIES = sizeof quantities / sizeof quantities[0] };

/* " Not equal: parameters (115M to 240M, 2.09 times)." */
static void write_equality(FILE *out, const weft_report_data *d, bool equal) {
    bool any = false;
    for (int q = 0; q < QUANTITIES; q++) {
        double least = NAN, most = NAN;
        for (int i = 0; i < d->n_variants; i++) {
            double value = weft_variant_number(&d->variants[i], quantities[q].at);
            least = fmin(least, value);
            most = fmax(most, value);
        }
        if (isnan(least) || (least == most) != equal) continue;
        fprintf(out, "%s%s", any ? ", " : equal ? "Equal: " : " Not equal: ", quantities[q].name);
        any = true;
        if (equal) continue;
        fprintf(out, " (%s to %s", weft_say_count(least), weft_say_count(most));
        if (least > 0)
            fprintf(out, most / least < 1.1 ? ", %.2f%% apart" : ", %.2f times",
                    most / least < 1.1 ? 100 * (most / least - 1) : most / least);
        fputs(")", out);
    }
    if (any) fputs(".", out);
}

static void equality_row(weft_page *p, const weft_report_data *d, int place) {
    const weft_report_variant *s = &d->variants[place];
    weft_page_cell(p, "%s", d->variants[place].label);
    for (int q = 0; q < QUANTITIES; q++) {
        double value = weft_variant_number(s, quantities[q].at);
        double base = s->baseline >= 0
                          ? weft_variant_number(&d->variants[s->baseline], quantities[q].at)
                          : NAN;
        const char *text = weft_say_count(value);
        if (isfinite(value) && base > 0 && value != base)
            weft_page_cell(p, "%s (%.3g ×)", text, value / base);
        else
            weft_page_cell(p, "%s", text);
    }
}

weft_status weft_report_equality(weft_page *p, const weft_report_data *d) {
    if (d->n_variants < 2) return WEFT_OK;
    weft_page_fold(
        p, "What was equal, and what was not",
        "A variant may score better because it is larger or was trained for longer: here "
        "is what each was given, and how many times its baseline's.");
    weft_page_say(p, "The study held equal: %s.", *d->equal ? d->equal : "nothing");
    write_equality(p->words, d, true);
    write_equality(p->words, d, false);
    const char *text = weft_page_words(p);
    if (*text) weft_page_say(p, "%s", text);
    weft_page_table_open(p, "variant");
    for (int q = 0; q < QUANTITIES; q++)
        weft_page_head(p, ">%s", quantities[q].head);
    for (int i = 0; i < d->n_variants; i++)
        equality_row(p, d, i);
    return WEFT_OK;
}

static bool same_origin(const weft_report_run *a, const weft_report_run *b) {
    static const char *const names[] = {"commit", "device", "machine", "dataset_hash"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(weft_report_fact(a, names[i]), weft_report_fact(b, names[i])) != 0) return false;
    return true;
}

/* Which program made how many of the runs where and of which text, as the runs' own records say. */
static void put_origins(weft_page *p, const weft_report_data *d) {
    bool open = false;
    for (int i = 0; i < d->n_runs; i++) {
        const weft_report_run *run = &d->runs[i];
        int n = 0, earlier = 0;
        if (!run->finished || !*weft_report_fact(run, "commit")) continue;
        for (int k = 0; k < d->n_runs; k++) {
            if (!d->runs[k].finished || !same_origin(run, &d->runs[k])) continue;
            earlier += k < i;
            n++;
        }
        if (earlier) continue;
        if (!open) weft_page_table_open(p, ">runs|commit|device|machine|text");
        open = true;
        weft_page_cell(p, "%d", n);
        weft_page_cell(p, "%.12s", weft_report_fact(run, "commit"));
        weft_page_cells(p, weft_report_fact(run, "device"), weft_report_fact(run, "machine"));
        const char *hash = weft_report_fact(run, "dataset_hash");
        weft_page_cell(p, "%s%.12s", *hash ? "hash " : "–", hash);
    }
}

weft_status weft_report_environment(weft_page *p, const weft_report_data *d) {
    static const char *const names[] = {"weft's version", "git commit", "study begun", "host",
                                        "machine",        "device",     "threads",     "seeds",
                                        "learning rates", "database"};
    const char *const values[] = {d->version,
                                  d->commit,
                                  d->created,
                                  d->host,
                                  d->machine,
                                  d->device,
                                  weft_say_number(d->threads),
                                  d->seeds_text,
                                  d->rates_text,
                                  d->path};
    weft_page_fold(
        p, "Where and with what it was run",
        "The program, the machine and the config that the variants' overrides start from.");
    weft_page_table_open(p, "what|which");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        weft_page_cells(p, names[i], *values[i] ? values[i] : "–");
    put_origins(p, d);
    weft_page_folded(p, "The whole base config", d->config);
    return WEFT_OK;
}
