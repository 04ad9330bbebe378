/* The live page, whole: one file with its script and style (report/charts.h), which asks nobody but its
 * own server. */
#ifndef WEFT_WATCH_LIVE_PAGE_H
#define WEFT_WATCH_LIVE_PAGE_H

/* malloc'd; NULL: no memory. */
char *weft_live_page(void);

#endif
