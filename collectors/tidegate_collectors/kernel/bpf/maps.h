/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
#ifndef TG_MAPS_H
#define TG_MAPS_H

/* All hashes are preallocated: an insert in the middle of a fork storm must not depend on the allocator. */

TG_MAP(config, BPF_MAP_TYPE_ARRAY, 1, u32, struct tg_config);
TG_MAP(tracked, BPF_MAP_TYPE_HASH, TG_MAX_SUBJECTS, u64, struct tg_tag); /* by v2 cgroup id */
TG_MAP(processes, BPF_MAP_TYPE_HASH, TG_MAX_PROCESSES, u32, struct tg_process); /* by tgid */
TG_MAP(subjects, BPF_MAP_TYPE_HASH, TG_MAX_SUBJECTS, u64, struct tg_stats);
TG_MAP(sessions, BPF_MAP_TYPE_HASH, TG_MAX_SESSIONS, u64, struct tg_stats); /* by the runtime's subject */
TG_MAP(memcgs, BPF_MAP_TYPE_HASH, TG_MAX_SUBJECTS, u64, struct tg_tag); /* by id in the memory controller's hierarchy */
TG_TASK_STORAGE(threads, struct tg_thread);
TG_MAP(running, BPF_MAP_TYPE_PERCPU_ARRAY, 1, u32, struct tg_running);
TG_MAP(losses, BPF_MAP_TYPE_PERCPU_ARRAY, TG_LOSSES, u32, u64);
TG_MAP(cpu_offsets, BPF_MAP_TYPE_ARRAY, 1, u32, struct tg_cpus);
TG_MAP(no_stats, BPF_MAP_TYPE_ARRAY, 1, u32, struct tg_stats); /* never written: too large for the stack */
TG_MAP(calls_begun, BPF_MAP_TYPE_ARRAY, 1, u32, u64);
TG_RING(events, 1 << 20);

static __always_inline void count_loss(u32 where)
{
	u64 *n = bpf_map_lookup_elem(MAP(losses), &where);
	if (n)
		*n += 1;
}

static __always_inline struct tg_config *settings(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(MAP(config), &zero);
}

static __always_inline struct tg_process *process_of(u32 tgid)
{
	return bpf_map_lookup_elem(MAP(processes), &tgid);
}

static __always_inline struct tg_stats *subject_of(u64 id)
{
	return bpf_map_lookup_elem(MAP(subjects), &id);
}

static __always_inline struct tg_stats *session_of(u64 id)
{
	return bpf_map_lookup_elem(MAP(sessions), &id);
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
	struct tg_event *e = bpf_ringbuf_reserve(MAP(events), sizeof(*e), 0);
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
