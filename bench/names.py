"""Names of the benchmark's variants. Measurements that were stored before have the names of the RA-MLA
write-up's ablation; they are read under today's."""

OLD = {"step1": "mla+gate", "step2": "mla+gate+cross", "step3": "mla+all"}


def current(name):
    return OLD.get(name, name)
