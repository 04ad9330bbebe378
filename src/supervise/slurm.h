/* A study by Slurm: an array of jobs, one for each variant, and a job after them that gathers.
 *
 *     DIR/slurm/variants, array.sh, gather.sh  what was submitted
 *     DIR/parts/VARIANT                        each job's own study, of that variant alone
 *     DIR/runs.db, report.html, report.md      all of them, made by the last job
 *
 * Jobs share nothing but the file system. The same command again continues what is not done. */
#pragma once

#include "study/study.h"

typedef struct {
    const char *out;      /* DIR; made where it is not */
    const bool *variants; /* which; NULL: all */
    const char *const
        *words;       /* of `weft study` in each job, but for --variants, --out, --threads; end on
                                 NULL */
    const char *more; /* further options of sbatch, as a shell reads them; NULL: none */
    int cpus;         /* of a job */
    const weft_backend *host; /* whose workspaces count in a job's memory */
    bool gpu;                 /* it needs one */
} weft_slurm_options;

typedef struct {
    int jobs;                   /* of the array */
    char array[32], gather[32]; /* their numbers */
} weft_slurm_jobs;

/* Submits. Memory is asked for by what the largest variant needs. WEFT_EMISSING: there is no sbatch. */
weft_status weft_slurm_submit(const weft_study *s, const weft_slurm_options *options,
                              weft_slurm_jobs *out);
