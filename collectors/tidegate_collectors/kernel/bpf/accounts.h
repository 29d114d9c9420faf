/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0-only) */
/* The accounts of memory: one of each subject, one of each session; peaks and bursts come from every change. */
#ifndef TG_ACCOUNTS_H
#define TG_ACCOUNTS_H

static __always_inline void raise_to(s64 *highest, s64 value)
{
	if (value > *highest)
		*highest = value;
}

/* Growth less frees in the running window; true when it passes the burst threshold now. */
static __always_inline bool grow(struct tg_stats *s, struct tg_config *c, s64 delta, u64 now)
{
	if (now - s->window_start > c->window_ns) {
		s->window_start = now;
		s->window_grown = 0;
	}
	s64 before = s->window_grown;
	s64 grown = before + delta > 0 ? before + delta : 0;
	s->window_grown = grown;
	raise_to(&s->window_max, grown);
	return c->burst_bytes && before < (s64)c->burst_bytes && grown >= (s64)c->burst_bytes;
}

/* The compiler drops a mask that it knows to be needless, and the verifier forgets the check that it knew it from. */
static __always_inline u64 bounded(u64 member)
{
	asm volatile("%0 &= 3" : "+r"(member));
	return member;
}

struct tg_change {
	u64 subject;
	u64 session; /* 0: the session's account stays as it is */
	s64 bytes;
	u32 member;
	u32 is_growth; /* allocated or freed just now; else only moved between accounts, which is no burst */
};

/* Books a change of one kind of memory. */
TG_GLOBAL int book(struct tg_change *change)
{
	struct tg_config *c = settings();
	if (!c || !change || change->member >= TG_MEMBERS || !change->bytes)
		return 0;
	struct tg_stats *sub = subject_of(change->subject), *ses = session_of(change->session);
	s64 delta = change->bytes, session_used = 0;
	u64 member = bounded(change->member);
	bool counts = member == TG_ANON || member == TG_SHMEM;
	bool is_growth = counts && change->is_growth;
	u64 now = is_growth ? bpf_ktime_get_ns() : 0;

	if (ses) {
		__sync_fetch_and_add(&ses->bytes[member], delta);
		if (counts) {
			session_used = __sync_fetch_and_add(&ses->used, delta) + delta;
			raise_to(&ses->peak, session_used);
		}
		if (is_growth && grow(ses, c, delta, now))
			__sync_fetch_and_add(&ses->bursts, 1);
	}
	if (!sub)
		return 0;
	__sync_fetch_and_add(&sub->bytes[member], delta);
	if (!counts)
		return 0;
	s64 used = __sync_fetch_and_add(&sub->used, delta) + delta;
	raise_to(&sub->peak, used);
	if (delta > 0)
		raise_to(&sub->max_session, session_used);
	if (is_growth && grow(sub, c, delta, now)) {
		__sync_fetch_and_add(&sub->bursts, 1);
		char comm[TG_COMM_BYTES];
		bpf_get_current_comm(comm, sizeof(comm));
		emit(TG_BURST, now, change->subject, bpf_get_current_pid_tgid() >> 32, 0, sub->window_grown, used, 0,
		     comm);
	}
	return 0;
}

static __always_inline void book_growth(struct tg_tag *to, u32 member, s64 bytes)
{
	struct tg_change change = {to->subject, to->session, bytes, member, 1};
	book(&change);
}

/* Adds (sign 1) or takes away (-1) all of `bytes`. */
static __always_inline void book_all(struct tg_tag *to, const s64 bytes[TG_MEMBERS], s64 sign, bool is_growth)
{
	TG_UNROLL
	for (int i = 0; i < TG_MEMBERS; i++) {
		struct tg_change change = {to->subject, to->session, sign * bytes[i], i, is_growth};
		book(&change);
	}
}

#endif
