/* wd_table.h -- opaque after-images that Python keeps in the log: PUT(kind, key, blob) / DEL. */
#ifndef WD_TABLE_H
#define WD_TABLE_H

#include "wd_arena.h"
#include "wd_siphash.h"

enum { WD_TABLE_MAX = 1 << 20, WD_TABLE_KEY_BYTES_MAX = 1024 };

typedef struct {
    wd_span key, blob;
    uint8_t kind;
} wd_entry;

typedef struct wd_table wd_table;

/* Of at most WD_TABLE_MAX entries; twice as many may stand in it while a checkpoint is loaded. */
wd_table *wd_table_new(const uint8_t hash_key[16], wd_arena *arena);
void wd_table_free(wd_table *t);
/* Set the blob (may be empty) of (kind, key). WD_OK, WD_EFULL: nothing changed. */
int wd_table_put(wd_table *t, uint8_t kind, wd_span key, wd_span blob);
/* 1: a checkpoint is being loaded, in which entries stand that went, beside those that came for
 * them; 0: that is over. */
void wd_table_set_loading(wd_table *t, int loading);
/* WD_OK, WD_EGONE. */
int wd_table_del(wd_table *t, uint8_t kind, wd_span key);
int wd_table_get(const wd_table *t, uint8_t kind, wd_span key, wd_span *out_blob);
/* Walk: entry numbers run from 0 to top; WD_EGONE for a number that is free. */
uint32_t wd_table_top(const wd_table *t);
int wd_table_at(const wd_table *t, uint32_t number, wd_entry *out);
uint32_t wd_table_count(const wd_table *t);
uint64_t wd_table_bytes(const wd_table *t);
int wd_table_check(const wd_table *t);

#endif /* WD_TABLE_H */
