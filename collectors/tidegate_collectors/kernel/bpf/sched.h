/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* Time on a CPU and time waiting for one, by subject. */
#ifndef TG_SCHED_H
#define TG_SCHED_H

static __always_inline struct tg_running *running_here(void)
{
	u32 zero = 0;
	return bpf_map_lookup_elem(MAP(running), &zero);
}

/* Ends the open slice of this CPU, if it belongs to a subject. */
static __always_inline void close_slice(struct tg_running *r, u64 now)
{
	if (!r->since_ns)
		return;
	struct tg_stats *sub = subject_of(r->subject), *ses = session_of(r->session);
	u64 ran = now - r->since_ns;
	COUNT(sub, ses, oncpu_ns, ran);
	r->since_ns = 0;
}

static __always_inline void open_slice(struct tg_running *r, struct tg_tag *tag, u64 now)
{
	r->subject = tag->subject;
	r->session = tag->session;
	r->since_ns = now;
}

static __always_inline void enqueue(struct task_struct *task, u64 now)
{
	struct tg_thread *t = bpf_task_storage_get(MAP(threads), task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (t)
		t->enqueued_ns = now;
	else
		count_loss(TG_LOST_MAP);
}

TG_PROGRAM(on_wakeup, sched_wakeup, struct task_struct *task)
{
	if (process_of(task->tgid))
		enqueue(task, bpf_ktime_get_ns());
	return 0;
}

TG_PROGRAM(on_wakeup_new, sched_wakeup_new, struct task_struct *task)
{
	if (process_of(task->tgid))
		enqueue(task, bpf_ktime_get_ns());
	return 0;
}

static __always_inline u32 log2_bucket(u64 us)
{
	u32 bucket = 0;
	if (us >> 16) { us >>= 16; bucket += 16; }
	if (us >> 8) { us >>= 8; bucket += 8; }
	if (us >> 4) { us >>= 4; bucket += 4; }
	if (us >> 2) { us >>= 2; bucket += 2; }
	if (us >> 1) bucket += 1;
	return bucket;
}

static __always_inline void book_wait(struct tg_process *p, struct task_struct *task, u64 waited, u64 now)
{
	struct tg_stats *sub = subject_of(p->tag.subject), *ses = session_of(p->tag.session);
	struct tg_config *c = settings();
	u32 bucket = log2_bucket(waited / 1000) & (TG_HIST_BUCKETS - 1);

	if (sub) {
		__sync_fetch_and_add(&sub->wait_ns, waited);
		__sync_fetch_and_add(&sub->hist[bucket], 1);
		if (waited > sub->wait_max_ns)
			sub->wait_max_ns = waited;
	}
	if (ses) {
		__sync_fetch_and_add(&ses->wait_ns, waited);
		__sync_fetch_and_add(&ses->hist[bucket], 1);
		if (waited > ses->wait_max_ns)
			ses->wait_max_ns = waited;
	}
	if (c && c->latency_ns && waited > c->latency_ns)
		emit(TG_LATENCY, now, p->tag.subject, task->tgid, 0, waited / 1000, 0, 0, task->comm);
}

/* The last thread of a process leaves the CPU for ever: memory, CPU time and all are final now. */
static __always_inline void process_gone(struct tg_process *p, struct task_struct *task)
{
	struct tg_stats *sub = subject_of(p->tag.subject), *ses = session_of(p->tag.session);
	struct tg_config *c = settings();
	u32 tgid = task->tgid;
	s64 had[TG_MEMBERS];

	/* In memcg mode the frees booked themselves, unless the OOM reaper did them. */
	if (c && (c->memory_source == TG_RSS_STAT || (p->flags & TG_P_OOM))) {
		contribution(p, c, had);
		book_all(&p->tag, had, -1, true);
	}
	COUNT(sub, ses, exits, 1);
	if (ses)
		__sync_fetch_and_add(&ses->alive, -1);
	if (sub) {
		s64 alive = __sync_fetch_and_add(&sub->alive, -1) - 1;
		if (c && alive <= 0 && c->memory_source == TG_MEMCG && p->tag.kind == TG_CALL_SUBJECT) {
			struct tg_tag call = {.subject = p->tag.subject}, runtime = {.subject = p->tag.session};
			s64 left[TG_MEMBERS];
			__builtin_memcpy(left, sub->bytes, sizeof(left));
			book_all(&call, left, -1, false);
			book_all(&runtime, left, 1, false);
		}
	}
	emit(TG_EXIT, p->exit_ns, p->tag.subject, tgid, p->ppid, p->status, p->hiwater, p->exit_cgroup, task->comm);
	bpf_map_delete_elem(MAP(processes), &tgid);
}

TG_PROGRAM(on_switch, sched_switch, bool preempt, struct task_struct *prev, struct task_struct *next,
	   unsigned int prev_state)
{
	struct tg_running *r = running_here();
	struct tg_process *p;
	struct tg_thread *t;
	u64 now = 0;

	if (!r)
		return 0;
	if (r->since_ns) { /* prev is tracked */
		now = bpf_ktime_get_ns();
		close_slice(r, now);
	}
	if (prev->pid && (preempt || !prev_state || (prev_state & TASK_DEAD))) {
		p = process_of(prev->tgid);
		if (p && (prev_state & TASK_DEAD)) {
			if ((p->flags & TG_P_DEAD) && p->dying_pid == (u32)prev->pid)
				process_gone(p, prev);
		} else if (p) { /* still runnable: it waits again */
			enqueue(prev, now ? now : bpf_ktime_get_ns());
		}
	}
	if (!next->pid)
		return 0;
	p = process_of(next->tgid);
	if (!p)
		return 0;
	if (!now)
		now = bpf_ktime_get_ns();
	open_slice(r, &p->tag, now);
	struct tg_stats *sub = subject_of(p->tag.subject), *ses = session_of(p->tag.session);
	COUNT(sub, ses, switches, 1);
	t = bpf_task_storage_get(MAP(threads), next, 0, 0);
	if (!t || !t->enqueued_ns)
		return 0;
	u64 waited = now > t->enqueued_ns ? now - t->enqueued_ns : 0;
	t->enqueued_ns = 0;
	book_wait(p, next, waited, now);
	return 0;
}

#endif
