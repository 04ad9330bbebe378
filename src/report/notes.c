/* What a reader must know before believing the numbers: what differs between the variants' configs,
 * what went wrong, what was not equal, where it was run. */
#include "base/json.h"
#include "report/sections.h"

#include "config/config.h"

#include <ctype.h>
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

/* A variant's whole config: its run's at the rate chosen, or the base with the variant's overrides. */
static json_t *variant_config(const weft_report_variant *v) {
    json_t *config = json_object();
    if (!config) return NULL;
    read_settings(config, v->study->config, '\n');
    read_settings(config, v->overrides, ' ');
    EACH_RUN_OF(run, v) {
        if (run->rate != v->rate && v->done) continue;
        WEFT_AUTO_DECREF json_t *object = weft_config_kept(run->config);
        EACH_MEMBER(o, object) {
            if (json_is_boolean(o.value))
                set_value(config, o.key, json_is_true(o.value) ? "y" : "n");
            else if (json_is_string(o.value))
                set_value(config, o.key, json_string_value(o.value));
            else if (json_is_number(o.value))
                set_value(config, o.key, weft_say("%.17g", json_number_value(o.value)));
        }
        break;
    }
    return config;
}

static const char *value_of(const json_t *configs, size_t i, const char *key) {
    return weft_json_text_of(json_array_get(configs, i), key);
}

static bool differs(const json_t *configs, const char *key) {
    for (size_t i = 1; i < json_array_size(configs); i++)
        if (strcmp(value_of(configs, 0, key), value_of(configs, i, key)) != 0) return true;
    return false;
}

weft_status weft_report_differences(weft_page *p, const weft_report_data *d) {
    WEFT_AUTO_DECREF json_t *configs = json_array(), *keys = json_object();
    int told = 0;
    EACH_VARIANT(v, d) {
        json_t *config = variant_config(v);
        json_object_update_missing(keys, config);
        json_array_append_new(configs, config);
    }
    if (d->n_variants > 1)
        weft_page_fold(p, "What differs between the configs",
                       "Every key whose value is not the same in all variants; the rest is alike.");
    EACH_MEMBER(option, keys) {
        const char *key = option.key;
        const weft_option *o = weft_option_find(key);
        /* What is the whole study's is no difference between variants; seeds belong to runs. */
        if ((o && o->owner == WEFT_OWNER_STUDY) || !differs(configs, key)) continue;
        if (told++ == 0) weft_report_open_table(p, d, "key", NULL);
        char name[WEFT_SETTING_KEY];
        size_t n = 0;
        for (; key[n]; n++)
            name[n] = (char)toupper((unsigned char)key[n]);
        name[n] = '\0';
        weft_page_cell(p, "%s", name);
        for (int i = 0; i < d->n_variants; i++)
            weft_page_cell(p, "%s", value_of(configs, (size_t)i, key));
    }
    if (d->n_variants > 1 && told == 0)
        weft_page_say(p, "The variants' configs are the same in every key.");
    bool memory = keys && json_array_size(configs) == (size_t)d->n_variants;
    return memory ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for the configs");
}

/* Everything but the runs that went well: of variants, of runs in their order, and what else happened; a row without
 * a place is of a run. Events of some kinds are told by another part of the report, or are no trouble. */
static const char troubles[] =
    "WITH t(part, a, rate, seed, row, variant, place, what, why) AS ("
    "SELECT 0, variant, 0, 0, 0, variant, 'config', 'cannot be built', error FROM variants"
    "  WHERE error <> ''"
    " UNION ALL SELECT 0, variant, 0, 0, 1, variant, 'every run', 'LEAKS',"
    "  'a token sees later ones, so its score is not one of prediction' FROM variants WHERE leaks"
    " UNION ALL SELECT 0, variant, 0, 0, 2, variant, 'runs',"
    "  printf('%d waiting, %d running', sum(status = 'waiting'), sum(status = 'running')),"
    "  'the study is not finished' FROM runs WHERE status IN ('waiting', 'running')"
    "  GROUP BY variant"
    " UNION ALL SELECT 1, variant, learning_rate, seed, 0, variant, NULL,"
    "  CASE status WHEN 'done' THEN 'has no score' ELSE status END, why"
    "  FROM runs WHERE status IN ('failed', 'diverged') OR"
    "  (status = 'done' AND (abs(score) < 9e999) IS NOT TRUE)"
    " UNION ALL SELECT 1, variant, learning_rate, seed, 1, variant, NULL,"
    "  printf('%d updates skipped', skipped),"
    "  'their gradients were not finite' FROM runs WHERE skipped > 0"
    " UNION ALL SELECT 1, variant, learning_rate, seed, 2, variant, NULL,"
    "  printf('%d spike%s', count(*), substr('s', 1, count(*) <> 1)),"
    "  'the gradient norm stood far out' FROM events JOIN runs USING (run) WHERE kind = 'spike'"
    "  GROUP BY run"
    " UNION ALL SELECT 1, variant, learning_rate, seed, 3, variant, NULL,"
    "  printf('resumed %d time%s', resumes, substr('s', 1, resumes <> 1)),"
    "  'harmless: it was stopped, and continued from its checkpoint' FROM runs WHERE resumes > 0"
    " UNION ALL SELECT 2, id, learning_rate, seed, 0,"
    "  CASE WHEN e.run IS NULL THEN e.step ELSE r.variant END,"
    "  CASE WHEN r.run IS NULL THEN 'study' END, kind, detail"
    "  FROM events e LEFT JOIN runs r ON r.run = e.run WHERE kind NOT IN ('spike', 'reset',"
    "  'skipped', 'started', 'resumed', 'killed', 'failed', 'equal', 'unequal', 'stopped',"
    "  'diverged', 'leaks', 'pruned'))"
    " SELECT variant, seed, rate, place, what, why FROM t ORDER BY part, a, rate, seed, row";

weft_status weft_report_trouble(weft_page *p, const weft_report_data *d) {
    int n = 0;
    weft_page_heading(p, "What leaked, was skipped, failed or diverged",
                      "What went wrong, so that no number is trusted more than it deserves.");
    EACH_ROW(rows, d->database, troubles) {
        double variant = weft_column_number(rows, 0), rate = sqlite3_column_double(rows, 2);
        bool known = variant >= 0 && variant < d->n_variants;
        if (n++ == 0) weft_page_table_open(p, "variant|where|what|why");
        weft_page_cell(p, "%s", known ? d->variants[(int)variant].label : "–");
        if (*weft_column_text(rows, 3))
            weft_page_cell(p, "%s", weft_column_text(rows, 3));
        else
            weft_page_cell(p, "seed %lld, learning rate %g",
                           (long long)sqlite3_column_int64(rows, 1), rate);
        weft_page_cells(p, weft_column_text(rows, 4), weft_column_text(rows, 5));
    }
    WEFT_TRY(weft_database_end(d->database));
    if (!n && d->n_runs)
        weft_page_say(
            p, "Nothing: every variant could be built, none leaks, every run finished and no "
               "update was skipped.");
    else if (!n)
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

/* " Not equal: parameters (115M to 240M, 2.09 times)." */
static void write_equality(FILE *out, const weft_report_data *d, bool equal) {
    bool any = false;
    for (int q = 0; q < WEFT_COUNT(quantities); q++) {
        double least = NAN, most = NAN;
        EACH_VARIANT(v, d) {
            double value = weft_variant_number(v, quantities[q].at);
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
    for (int q = 0; q < WEFT_COUNT(quantities); q++)
        weft_page_head(p, ">%s", quantities[q].head);
    EACH_VARIANT(v, d) {
        weft_page_cell(p, "%s", v->label);
        for (int q = 0; q < WEFT_COUNT(quantities); q++) {
            double value = weft_variant_number(v, quantities[q].at);
            double base = v->baseline ? weft_variant_number(v->baseline, quantities[q].at) : NAN;
            bool other = isfinite(value) && base > 0 && value != base;
            weft_page_cell(p, "%s%s", weft_say_count(value),
                           other ? weft_say(" (%.3g ×)", value / base) : "");
        }
    }
    return WEFT_OK;
}

weft_status weft_report_environment(weft_page *p, const weft_report_data *d) {
    weft_page_fold(
        p, "Where and with what it was run",
        "The program, the machine and the config that the variants' overrides start from.");
    weft_page_table_open(p, "what|which");
    EACH_ROW(row, d->database,
             "SELECT weft_version AS \"weft's version\", git_commit AS \"git commit\", created AS"
             " \"study begun\", host, machine, device, threads, seeds, learning_rates AS"
             " \"learning rates\" FROM study")
        for (int i = 0; i < sqlite3_column_count(row); i++) {
            const char *value = weft_column_text(row, i);
            weft_page_cells(p, sqlite3_column_name(row, i), *value ? value : "–");
        }
    WEFT_TRY(weft_database_end(d->database));
    weft_page_cells(p, "database", d->path);
    /* Which program made how many of the runs where and of which text, as the runs' own records say. */
    int told = 0;
    EACH_ROW(
        rows, d->database,
        "WITH finished AS (SELECT run, row_number() OVER (ORDER BY variant, learning_rate, seed)"
        " AS place FROM runs WHERE status = 'done' AND abs(score) < 9e999)"
        " SELECT count(*), a.value, b.value, c.value, d.value FROM finished"
        " JOIN facts a ON a.run = finished.run AND a.name = 'commit' AND a.value <> ''"
        " LEFT JOIN facts b ON b.run = finished.run AND b.name = 'device'"
        " LEFT JOIN facts c ON c.run = finished.run AND c.name = 'machine'"
        " LEFT JOIN facts d ON d.run = finished.run AND d.name = 'dataset_hash'"
        " GROUP BY a.value, b.value, c.value, d.value ORDER BY min(place)") {
        const char *hash = weft_column_text(rows, 4);
        if (told++ == 0) weft_page_table_open(p, ">runs|commit|device|machine|text");
        weft_page_cell(p, "%d", sqlite3_column_int(rows, 0));
        weft_page_cell(p, "%.12s", weft_column_text(rows, 1));
        weft_page_cells(p, weft_column_text(rows, 2), weft_column_text(rows, 3));
        weft_page_cell(p, "%s%.12s", *hash ? "hash " : "–", hash);
    }
    WEFT_TRY(weft_database_end(d->database));
    weft_page_folded(p, "The whole base config", d->config);
    return WEFT_OK;
}
