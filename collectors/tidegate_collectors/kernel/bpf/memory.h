/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/*
 * Memory by subject, from one of two sources:
 *
 * rss_stat: the counters of each mm, read absolutely, so that nothing drifts. The cheap reading lags by up to 32 pages
 * a CPU; at fork, exec and exit all CPUs' parts are summed, so that small programs are exact at their ends. A page that
 * a forked child copies on write is not seen (the child's counters start where its parent's were), and shared memory
 * counts once for each process that maps it.
 *
 * memcg: the memory controller's own deltas, exact to the page, booked on the process that caused them. What other
 * tasks free (reclaim) is booked by the page's memcg. A subject without processes has no memory: what is left on a
 * call's account then was charged before its exec or freed by a relative, and goes back to its runtime.
 */
#ifndef TG_MEMORY_H
#define TG_MEMORY_H

/* The address is computed from relocated sizes: the type's size here need not be the kernel's. */
static __always_inline s64 mm_counter(struct mm_struct *mm, u32 member, u32 page_shift)
{
	s64 pages = 0;
	u64 at = (u64)mm + bpf_core_field_offset(struct mm_struct, rss_stat) +
		 member * bpf_core_type_size(struct percpu_counter) +
		 bpf_core_field_offset(struct percpu_counter, count);
	bpf_probe_read_kernel(&pages, sizeof(pages), (void *)at);
	return pages > 0 ? pages << page_shift : 0;
}

/* Counters with the part that each CPU has not yet handed in. Too dear for each event. */
TG_GLOBAL int exact_counters(struct tg_reading *out)
{
	struct tg_config *c = settings();
	u32 zero = 0;
	struct tg_cpus *cpus = bpf_map_lookup_elem(MAP(cpu_offsets), &zero);
	if (!c || !out || !cpus)
		return 0;
	TG_UNROLL
	for (int member = 0; member < TG_MEMBERS; member++) {
		s64 pages = 0;
		u64 parts = 0; /* nominal address of what each CPU keeps */
		u64 counter = out->mm + bpf_core_field_offset(struct mm_struct, rss_stat) +
			      member * bpf_core_type_size(struct percpu_counter);
		bpf_probe_read_kernel(&pages, sizeof(pages),
				      (void *)(counter + bpf_core_field_offset(struct percpu_counter, count)));
		bpf_probe_read_kernel(&parts, sizeof(parts),
				      (void *)(counter + bpf_core_field_offset(struct percpu_counter, counters)));
		for (u32 cpu = 0; cpu < TG_MAX_SUMMED_CPUS && cpu < cpus->count; cpu++) {
			s32 part = 0;
			bpf_probe_read_kernel(&part, sizeof(part), (void *)(parts + cpus->offset[cpu]));
			pages += part;
		}
		out->of[member] = pages > 0 ? pages << c->page_shift : 0;
	}
	return 0;
}

/* Sets what a process starts from: exact, so that the lag of the cheap counters is not taken for a change. */
static __always_inline void start_from(struct tg_process *p, struct mm_struct *mm)
{
	struct tg_reading now = {.mm = (u64)mm};
	if (mm)
		exact_counters(&now);
	__builtin_memcpy(p->last, now.of, sizeof(p->last));
	__builtin_memcpy(p->floor, now.of, sizeof(p->floor));
	p->mm = (u64)mm;
}

/* What a process added to its subject's account. */
static __always_inline void contribution(struct tg_process *p, struct tg_config *c, s64 out[TG_MEMBERS])
{
	bool absolute = c->memory_source == TG_RSS_STAT;
	TG_UNROLL
	for (int i = 0; i < TG_MEMBERS; i++)
		out[i] = p->last[i] - (absolute ? p->base[i] : 0);
}

/* Moves a process, its memory included, to another subject. */
static __always_inline void transfer(struct tg_process *p, struct tg_config *c, struct tg_tag *to)
{
	s64 had[TG_MEMBERS];
	contribution(p, c, had);
	book_all(&p->tag, had, -1, false);
	book_all(to, had, 1, false);
	struct tg_stats *old = subject_of(p->tag.subject), *new = subject_of(to->subject);
	COUNT(old, (struct tg_stats *)0, alive, -1);
	COUNT(new, (struct tg_stats *)0, alive, 1);
	if (p->tag.session != to->session) {
		COUNT(session_of(p->tag.session), (struct tg_stats *)0, alive, -1);
		COUNT(session_of(to->session), (struct tg_stats *)0, alive, 1);
	}
	p->tag = *to;
}

/* After an exec: the old memory is gone, the new is counted whole. `from` is who had the process before. */
static __always_inline void account_exec(struct tg_process *p, struct tg_config *c, struct mm_struct *mm,
					 struct tg_tag *from)
{
	if (c->memory_source == TG_RSS_STAT) {
		s64 had[TG_MEMBERS];
		contribution(p, c, had);
		book_all(from, had, -1, true);
		start_from(p, mm);
		book_all(&p->tag, p->last, 1, true);
	} else {
		/*
		 * The old memory's end was booked while it happened. A root that was tagged late also freed what was
		 * never booked, so its balance is struck anew; a forked child's is its relatives' business.
		 */
		if (!(p->flags & TG_P_FORKED)) {
			book_all(from, p->last, -1, false);
			book_all(from, p->exec_bytes, 1, false);
		}
		if (from->subject != p->tag.subject) {
			book_all(from, p->exec_bytes, -1, true);
			book_all(&p->tag, p->exec_bytes, 1, true);
		}
		__builtin_memcpy(p->last, p->exec_bytes, sizeof(p->last));
		__builtin_memset(p->exec_bytes, 0, sizeof(p->exec_bytes));
	}
	__builtin_memset(p->base, 0, sizeof(p->base));
	p->mm = (u64)mm;
}

/* Before a process ends: what the cheap counters have not told yet. Its highest may well be now. */
static __always_inline void account_exit(struct tg_process *p, struct tg_config *c, struct tg_reading *now)
{
	if (c->memory_source != TG_RSS_STAT)
		return;
	TG_UNROLL
	for (int i = 0; i < TG_MEMBERS; i++) {
		/* A child that gave back what it shared with its parent never had less than nothing. */
		s64 bytes = now->of[i] > p->base[i] ? now->of[i] : p->base[i];
		book_growth(&p->tag, i, bytes - p->last[i]);
		p->last[i] = bytes;
	}
}

TG_PROGRAM(on_rss_stat, rss_stat, struct mm_struct *mm, int raw_member)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct tg_process *p = process_of(task->tgid);
	struct tg_config *c;

	if (!p || (u32)raw_member >= TG_MEMBERS)
		return 0;
	if (p->flags & TG_P_DEAD) { /* exit_mm: its memory is on the way out; the end is when the last of it is gone */
		p->exit_ns = bpf_ktime_get_ns();
		return 0;
	}
	/* Another task's memory (reclaim, ptrace), or an exec's new one before it is done. */
	if (p->mm != (u64)mm || (u64)task->mm != (u64)mm)
		return 0;
	c = settings();
	if (!c)
		return 0;
	u64 member = bounded(raw_member);
	s64 now = mm_counter(mm, member, c->page_shift);
	if (now < p->floor[member])
		now = p->floor[member];
	s64 delta = now - p->last[member];
	if (!delta)
		return 0;
	p->last[member] = now;
	book_growth(&p->tag, member, delta);
	return 0;
}

/* A task of no session frees or moves our pages: kswapd, the OOM reaper, khugepaged, or reclaim by a process. */
static __always_inline void book_by_memcg(struct mem_cgroup *memcg, u32 member, s64 delta)
{
	u64 id = memcg->css.cgroup->kn->id;
	struct tg_tag *tag = bpf_map_lookup_elem(MAP(memcgs), &id);
	if (tag)
		book_growth(tag, member, delta);
}

TG_PROGRAM(on_memcg_stat, mod_memcg_lruvec_state, struct mem_cgroup *memcg, int item, int pages)
{
	u32 member;
	if (item == bpf_core_enum_value(enum node_stat_item, NR_ANON_MAPPED))
		member = TG_ANON;
	else if (item == bpf_core_enum_value(enum node_stat_item, NR_SHMEM))
		member = TG_SHMEM;
	else if (item == bpf_core_enum_value(enum node_stat_item, NR_FILE_MAPPED))
		member = TG_FILE;
	else
		return 0;

	struct task_struct *task = bpf_get_current_task_btf();
	struct tg_config *c = settings();
	if (!c)
		return 0;
	s64 delta = (s64)pages << c->page_shift;
	if (task->flags & (PF_KTHREAD | PF_MEMALLOC)) {
		book_by_memcg(memcg, member, delta);
		return 0;
	}
	struct tg_process *p = process_of(task->tgid);
	if (!p)
		return 0;
	if (p->flags & TG_P_DEAD)
		p->exit_ns = bpf_ktime_get_ns();
	/* Frees beyond what it added are of the memory that it had before it was ours, as long as there is any. */
	s64 spare = p->last[member] + delta;
	if (delta < 0 && p->base[member] > 0 && spare < 0) {
		s64 foreign = -spare < p->base[member] ? -spare : p->base[member];
		if (foreign > -delta)
			foreign = -delta;
		p->base[member] -= foreign;
		delta += foreign;
		if (!delta)
			return 0;
	}
	__sync_fetch_and_add(&p->last[member], delta);
	if (delta > 0 && (u64)task->mm != p->mm && p->mm)
		__sync_fetch_and_add(&p->exec_bytes[member], delta); /* an exec's new memory */
	book_growth(&p->tag, member, delta);
	return 0;
}

#endif
