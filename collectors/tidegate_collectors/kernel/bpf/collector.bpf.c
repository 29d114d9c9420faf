// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only)
/* Life of the processes of sessions: who they belong to, and when calls begin. See ../bpf_observer.py. */
#include "kernel_types.h"
#include "loader.h"
#include "collector.h"
#include "maps.h"
#include "accounts.h"
#include "memory.h"
#include "sched.h"

TG_LICENSE("Dual BSD/GPL");
TG_MARK_SOURCE;

TG_KFUNC(bpf_task_from_pid, struct task_struct *, s32 pid);
TG_KFUNC(bpf_task_release, void, struct task_struct *task);

static __always_inline u64 cgroup_of(struct task_struct *task)
{
	return task->cgroups->dfl_cgrp->kn->id;
}

TG_PROGRAM(on_fork, sched_process_fork, struct task_struct *parent, struct task_struct *child)
{
	struct tg_process *p = process_of(parent->tgid);
	if (!p || child->pid != child->tgid)
		return 0;
	struct tg_config *c = settings();
	if (!c)
		return 0;
	struct tg_process new = {.tag = p->tag, .fork_ns = bpf_ktime_get_ns(), .flags = TG_P_FORKED};
	if (child->mm == parent->mm) {
		new.flags |= TG_P_SHARES_MM;
	} else {
		new.mm = (u64)child->mm;
		if (c->memory_source == TG_RSS_STAT) {
			start_from(&new, child->mm);
			__builtin_memcpy(new.base, new.last, sizeof(new.base));
		}
	}
	u32 tgid = child->tgid;
	if (bpf_map_update_elem(MAP(processes), &tgid, &new, BPF_ANY)) {
		count_loss(TG_LOST_MAP);
		return 0;
	}
	struct tg_stats *sub = subject_of(new.tag.subject), *ses = session_of(new.tag.session);
	COUNT(sub, ses, forks, 1);
	COUNT(sub, ses, alive, 1);
	emit(TG_FORK, new.fork_ns, new.tag.subject, tgid, parent->tgid, 0, 0, cgroup_of(child), child->comm);
	return 0;
}

static __always_inline void emit_call(struct tg_process *p, struct task_struct *task)
{
	struct tg_call_event *e = bpf_ringbuf_reserve(MAP(events), sizeof(*e), 0);
	if (!e) {
		count_loss(TG_LOST_RING);
		return;
	}
	u64 from = task->mm->arg_start, to = task->mm->arg_end;
	u32 length = to - from < TG_ARGV_BYTES ? to - from : TG_ARGV_BYTES;
	if (from >= to || bpf_probe_read_user(e->argv, length, (void *)from))
		length = 0;
	e->head.t_ns = p->fork_ns;
	e->head.subject = p->tag.subject;
	e->head.a = p->tag.session;
	e->head.b = 0;
	e->head.cgroup_id = cgroup_of(task);
	e->head.kind = TG_CALL;
	e->head.pid = task->tgid;
	e->head.ppid = task->real_parent->tgid;
	e->head.argv_bytes = length;
	bpf_probe_read_kernel(e->head.comm, sizeof(e->head.comm), task->comm);
	bpf_ringbuf_submit(e, 0);
}

/* A subject of its own for a process that the runtime started; false: it stays runtime, for want of room or of a session. */
static __always_inline bool begin_call(struct tg_process *p)
{
	struct tg_stats *ses = session_of(p->tag.session);
	if (!ses) /* forgotten by userspace, which would not free the call's counters either */
		return false;
	u32 zero = 0;
	u64 *begun = bpf_map_lookup_elem(MAP(calls_begun), &zero);
	struct tg_stats *none = bpf_map_lookup_elem(MAP(no_stats), &zero);
	if (!begun || !none)
		return false;
	struct tg_tag call = {
		.subject = TG_FIRST_CALL + __sync_fetch_and_add(begun, 1),
		.session = p->tag.session,
		.kind = TG_CALL_SUBJECT,
	};
	if (bpf_map_update_elem(MAP(subjects), &call.subject, none, BPF_NOEXIST)) {
		count_loss(TG_LOST_MAP);
		return false;
	}
	struct tg_stats *sub = subject_of(call.subject), *old = subject_of(p->tag.subject);
	if (sub) {
		sub->alive = 1;
		sub->start_session = ses->used;
		sub->max_session = sub->start_session;
	}
	if (old)
		__sync_fetch_and_add(&old->alive, -1);
	p->tag = call;
	return true;
}

TG_PROGRAM(on_exec, sched_process_exec, struct task_struct *task, pid_t old_pid, struct linux_binprm *bprm)
{
	struct tg_process *p = process_of(task->tgid);
	struct tg_config *c = settings();
	struct tg_running *r = running_here();
	if (!p || !c || !r)
		return 0;

	struct tg_tag from = p->tag;
	bool is_call = false;
	if (p->tag.kind == TG_RUNTIME && (p->flags & TG_P_FORKED)) {
		if (p->tag.depth)
			p->tag.depth--;
		else
			is_call = begin_call(p);
	}
	account_exec(p, c, task->mm, &from);
	p->flags &= ~(TG_P_FORKED | TG_P_SHARES_MM);
	struct tg_stats *sub = subject_of(p->tag.subject), *ses = session_of(p->tag.session);
	COUNT(sub, ses, execs, 1);
	u64 now = bpf_ktime_get_ns();
	close_slice(r, now);
	open_slice(r, &p->tag, now);
	if (is_call)
		emit_call(p, task);
	else
		emit(TG_EXEC, now, p->tag.subject, task->tgid, task->real_parent->tgid, 0, 0, cgroup_of(task),
		     task->comm);
	return 0;
}

TG_PROGRAM(on_exit, sched_process_exit, struct task_struct *task)
{
	struct tg_process *p = process_of(task->tgid);
	struct signal_struct *signal = task->signal;
	if (!p || signal->live.counter || (p->flags & TG_P_DEAD))
		return 0;
	struct tg_config *c = settings();
	struct mm_struct *mm = task->mm;
	s64 resident = 0, hiwater = 0;
	if (mm && c) {
		struct tg_reading now = {.mm = (u64)mm};
		exact_counters(&now);
		hiwater = (s64)mm->hiwater_rss << c->page_shift;
		resident = now.of[TG_FILE] + now.of[TG_ANON] + now.of[TG_SHMEM];
		if (p->mm == (u64)mm)
			account_exit(p, c, &now);
	}
	p->hiwater = hiwater > resident ? hiwater : resident;
	p->status = signal->flags & SIGNAL_GROUP_EXIT ? signal->group_exit_code : task->group_leader->exit_code;
	p->ppid = task->group_leader->real_parent->tgid;
	p->exit_cgroup = cgroup_of(task);
	p->exit_ns = bpf_ktime_get_ns();
	p->dying_pid = task->pid;
	p->flags |= TG_P_DEAD;
	return 0;
}

/* Makes a process that runs already part of a subject. What it has by then is not counted as growth. */
static __always_inline int tag_task(struct task_struct *task, struct tg_tag *tag)
{
	struct tg_config *c = settings();
	u32 tgid = task->tgid;
	if (!c)
		return -22;
	struct tg_process *p = process_of(tgid);
	if (p) {
		if (p->tag.subject != tag->subject) {
			struct tg_tag to = *tag;
			transfer(p, c, &to);
			p->flags &= ~TG_P_FORKED;
		}
		return 0;
	}
	struct tg_process new = {.tag = *tag, .fork_ns = bpf_ktime_get_ns()};
	start_from(&new, task->mm);
	__builtin_memcpy(new.base, new.last, sizeof(new.base));
	if (c->memory_source == TG_MEMCG)
		__builtin_memset(new.last, 0, sizeof(new.last));
	if (bpf_map_update_elem(MAP(processes), &tgid, &new, BPF_NOEXIST)) {
		count_loss(TG_LOST_MAP);
		return -7;
	}
	struct tg_stats *sub = subject_of(tag->subject), *ses = session_of(tag->session);
	COUNT(sub, ses, alive, 1);
	return 0;
}

TG_PROGRAM(on_attach, cgroup_attach_task, struct cgroup *to, const char *path, struct task_struct *task,
	   bool threadgroup)
{
	if (to->root->hierarchy_id) /* a v1 hierarchy; ids of cgroups are unique only within theirs */
		return 0;
	u64 id = to->kn->id;
	struct tg_tag *tag = bpf_map_lookup_elem(MAP(tracked), &id);
	if (!tag)
		return 0;
	tag_task(task, tag);
	emit(TG_ATTACH, bpf_ktime_get_ns(), tag->subject, task->tgid, 0, 0, 0, id, task->comm);
	return 0;
}

TG_PROGRAM(on_victim, mark_victim, struct task_struct *task)
{
	struct tg_process *p = process_of(task->tgid);
	if (!p)
		return 0;
	p->flags |= TG_P_OOM;
	struct tg_stats *sub = subject_of(p->tag.subject), *ses = session_of(p->tag.session);
	COUNT(sub, ses, ooms, 1);
	emit(TG_OOM, bpf_ktime_get_ns(), p->tag.subject, task->tgid, 0, 0, 0, cgroup_of(task), task->comm);
	return 0;
}

TG_SYSCALL(tag_process, struct tg_tag_request *request)
{
	struct task_struct *task = bpf_task_from_pid(request->pid);
	if (!task) {
		request->result = -3;
		return 0;
	}
	struct tg_tag tag = request->tag;
	request->result = tag_task(task, &tag);
	bpf_task_release(task);
	return 0;
}

/*
 * Fills cpu_offsets. There is no helper for it (and the kernel's own table is not in kallsyms everywhere), so it is
 * learnt from a per-CPU map of ours, whose nominal address the kernel keeps and whose copies the helper finds. Without
 * it, small programs are only less exact.
 */
TG_SYSCALL(learn_cpus, void *context)
{
	void *map = MAP(losses);
	u64 map_address = 0, nominal = 0;
	u32 zero = 0;
	struct tg_cpus *cpus = bpf_map_lookup_elem(MAP(cpu_offsets), &zero);
	bpf_probe_read_kernel(&map_address, sizeof(map_address), &map); /* the pointer, as a number */
	bpf_probe_read_kernel(&nominal, sizeof(nominal),
			      (void *)(map_address + bpf_core_field_offset(struct bpf_array, pptrs)));
	if (!cpus || !nominal)
		return 0;
	for (u32 cpu = 0; cpu < TG_MAX_SUMMED_CPUS; cpu++) {
		void *copy = bpf_map_lookup_percpu_elem(MAP(losses), &zero, cpu);
		u64 address = 0;
		if (!copy)
			break;
		bpf_probe_read_kernel(&address, sizeof(address), &copy);
		cpus->offset[cpu] = address - nominal;
		cpus->count = cpu + 1;
	}
	return 0;
}
