/* The page at /: a form to try the model in a browser. It is one file and asks nobody else for
 * anything. */
#ifndef WEFT_SERVE_PAGE_H
#define WEFT_SERVE_PAGE_H

extern const char weft_page[];

#endif
