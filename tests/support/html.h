/* Whether a page is well formed. */
#ifndef WEFT_TESTS_HTML_H
#define WEFT_TESTS_HTML_H

/* Fails the test unless the page has a head with one title, and a style, every element is closed where it was opened,
 * no attribute stands twice in an element and no id twice in the page. */
void html_expect_well_formed(const char *page);

#endif
