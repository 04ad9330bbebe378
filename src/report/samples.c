/* What the variants' models write, side by side: the last sample of each variant's first seed, where the
 * study has SAMPLE_PROMPT and the runs' folders are still there. And what attention looks at: for each
 * variant, the weights of a few heads over that text, and with W2 attention the deviation of each token
 * (attention.json, see train/samples.h). The files are read as any by others: sizes and numbers
 * beyond what weft writes are not drawn. */
#include "base/text.h"
#include "report/sections.h"

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "report/inside.h"

#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, SHOWN = 600 /* bytes of a text */ };
enum { FILE_MOST = 1 << 20, TOKENS_MOST = 64, MAPS_MOST = 8 };

/* The study's folder, in which the runs' are. */
static void find_folder(const weft_report_data *d, char folder[WEFT_PATH_MAX]) {
    struct stat info;
    snprintf(folder, WEFT_PATH_MAX, "%s", d->path);
    if (stat(d->path, &info) == 0 && S_ISDIR(info.st_mode)) return;
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    else
        snprintf(folder, WEFT_PATH_MAX, ".");
}

/* The last whole line of a run's samples; NULL: there is none. */
static json_t *last_sample(const char *folder, const weft_report_run *run) {
    char path[PATH_ROOM];
    /* Runs that no study made are not in runs/ (record/database.h). */
    const char *names[] = {run->folder, strchr(run->folder, '/')};
    bool there = false;
    for (int i = 0; i < 2 && !there && names[i]; i++) {
        const char *name = names[i] + i;
        if (snprintf(path, sizeof path, "%s/%s/samples.jsonl", folder, name) >= PATH_ROOM)
            return NULL;
        /* One that cannot be looked at is opened too: that tells why. */
        if (weft_path_there(path, &there) != WEFT_OK) there = true;
    }
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    WEFT_AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t n;
    json_t *last = NULL;
    if (!there) return NULL;
    if (weft_file_open_stream(path, &file) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "report: without the samples of a run: %s", weft_error_message());
        return NULL;
    }
    while ((n = getline(&line, &room, file)) > 0) {
        json_t *row = weft_json_read(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!row) continue;
        json_decref(last);
        last = row;
    }
    return last;
}

const weft_report_run *weft_report_first_run(const weft_report_data *d, int variant) {
    if (d->variants[variant].repeats >= 0) return NULL;
    for (int i = 0; i < d->n_seeds; i++) {
        const weft_report_run *run =
            weft_report_find(d, variant, d->variants[variant].rate, d->seeds[i]);
        if (run && run->finished) return run;
    }
    return NULL;
}

/* What is shown of a text, cut between characters; a zero, which a model of bytes may write, is a blank. "": no memory. */
static const char *shown_text(weft_page *p, const json_t *value) {
    const char *text = json_string_value(value);
    size_t length = json_string_length(value);
    if (length > SHOWN) length = weft_utf8_cut(text, SHOWN);
    char *shown = weft_page_room(p, length + 1);
    for (size_t i = 0; shown && i < length; i++)
        shown[i] = text[i] ? text[i] : ' ';
    return shown ? shown : "";
}

weft_status weft_report_samples(weft_page *p, const weft_report_data *d) {
    char folder[WEFT_PATH_MAX];
    bool open = false;
    find_folder(d, folder);
    for (int variant = 0; variant < d->n_variants; variant++) {
        const weft_report_run *run = weft_report_first_run(d, variant);
        WEFT_AUTO_DECREF json_t *sample = run ? last_sample(folder, run) : NULL;
        const json_t *text = json_object_get(sample, "text"),
                     *cache = json_object_get(sample, "cache_bytes_per_token");
        const char *prompt = json_string_value(json_object_get(sample, "prompt"));
        if (!json_is_string(text) || !prompt) continue;
        if (!open)
            weft_page_heading(
                p, "What the models write",
                "The last sample of each variant's first random seed; the same prompt "
                "and the same random numbers for all. The cache is the memory that it took "
                "in generating, divided by the tokens that it has room for.");
        open = true;
        const char *title =
            weft_say("%.200s, after %lld training steps", d->variants[variant].label,
                     (long long)json_integer_value(json_object_get(sample, "step")));
        if (json_is_integer(cache))
            title = weft_say("%s; cache: %lld bytes per token", title,
                             (long long)json_integer_value(cache));
        weft_page_text(p, title, prompt, shown_text(p, text));
    }
    return WEFT_OK;
}

static void put_variant(weft_page *p, const weft_report_data *d, int variant, const json_t *map) {
    size_t time = json_array_size(json_object_get(map, "tokens")), l;
    json_t *layer;
    int left = MAPS_MOST;
    if (time < 2 || time > TOKENS_MOST) return;
    weft_page_subtitle(p, d->variants[variant].label);
    weft_page_pictures_open(p, NULL);
    json_array_foreach(json_object_get(map, "layers"), l, layer) {
        left -= weft_inside_put_maps(p, layer, time, d->variants[variant].label, variant, left);
    }
}

weft_status weft_report_attention(weft_page *p, const weft_report_data *d) {
    char folder[WEFT_PATH_MAX];
    bool open = false;
    find_folder(d, folder);
    for (int variant = 0; variant < d->n_variants; variant++) {
        const weft_report_run *run = weft_report_first_run(d, variant);
        char path[WEFT_PATH_MAX];
        WEFT_AUTO_DECREF json_t *map = NULL;
        if (run && weft_path(path, "%s/%s/attention.json", folder, run->folder) == WEFT_OK)
            map = weft_json_file(path, FILE_MOST);
        if (map && !open)
            weft_page_fold(p, "What attention looks at",
                           "Each variant's heads of the first and the last layer, over the text "
                           "above: a row for each token, stronger where it looks more. The first "
                           "token is at the top left.");
        if (map && !open) fputs("\n(The pictures are in report.html.)\n", p->md);
        open = open || map;
        if (map) put_variant(p, d, variant, map);
    }
    return WEFT_OK;
}
