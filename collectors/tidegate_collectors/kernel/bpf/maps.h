/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
#ifndef TG_MAPS_H
#define TG_MAPS_H

/* All hashes are preallocated: an insert in the middle of a fork storm must not depend on the allocator. */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tg_config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MAX_SUBJECTS);
	__type(key, u64); /* v2 cgroup id */
	__type(value, struct tg_tag);
} tracked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MAX_PROCESSES);
	__type(key, u32); /* tgid */
	__type(value, struct tg_process);
} processes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MAX_SUBJECTS);
	__type(key, u64);
	__type(value, struct tg_stats);
} subjects SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MAX_SESSIONS);
	__type(key, u64); /* the runtime's subject */
	__type(value, struct tg_stats);
} sessions SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, TG_MAX_SUBJECTS);
	__type(key, u64); /* cgroup id in the hierarchy of the memory controller */
	__type(value, struct tg_tag);
} memcgs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tg_thread);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tg_running);
} running SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, TG_LOSSES);
	__type(key, u32);
	__type(value, u64);
} losses SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct tg_cpus);
} cpu_offsets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events SEC(".maps");

static __always_inline void count_loss(u32 where)
{
	u64 *n = bpf_map_lookup_elem(&losses, &where);
	if (n)
		*n += 1;
}

static __always_inline struct tg_config *settings(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(&config, &zero);
}

static __always_inline struct tg_process *process_of(u32 tgid)
{
	return bpf_map_lookup_elem(&processes, &tgid);
}

static __always_inline struct tg_stats *subject_of(u64 id)
{
	return bpf_map_lookup_elem(&subjects, &id);
}

static __always_inline struct tg_stats *session_of(u64 id)
{
	return bpf_map_lookup_elem(&sessions, &id);
}

/* Adds to both accounts of a process: its subject's and its session's. */
#define COUNT(sub, ses, field, n)                                   \
	do {                                                        \
		struct tg_stats *sub_ = (sub), *ses_ = (ses);       \
		if (sub_)                                           \
			__sync_fetch_and_add(&sub_->field, (n));    \
		if (ses_)                                           \
			__sync_fetch_and_add(&ses_->field, (n));    \
	} while (0)

static __always_inline void emit(u32 kind, u64 t_ns, u64 subject, u32 pid, u32 ppid, u64 a, u64 b, u64 cgroup_id,
				 const char *comm)
{
	struct tg_event *e = bpf_ringbuf_reserve(&events, sizeof(*e), 0);
	if (!e) {
		count_loss(TG_LOST_RING);
		return;
	}
	e->t_ns = t_ns;
	e->subject = subject;
	e->a = a;
	e->b = b;
	e->cgroup_id = cgroup_id;
	e->kind = kind;
	e->pid = pid;
	e->ppid = ppid;
	e->argv_bytes = 0;
	bpf_probe_read_kernel(e->comm, sizeof(e->comm), comm);
	bpf_ringbuf_submit(e, 0);
}

#endif
