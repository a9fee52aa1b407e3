"""The jobs that the database remembers, and every change that is made to them.

A stored job is one row of `StoredJob`, of one of four kinds:

========  ====================================================================================
kind      what it is
========  ====================================================================================
fresh     a job of a transaction, whose commit hook publishes it; no relay has seen it yet
outbox    a job that the broker should have got and perhaps has not
hold      a job that is not due yet: delayed, retried, deferred, or not known to any worker
gone      a hold that was published or cancelled; kept for a while, for deliveries that come late
========  ====================================================================================

``claimable_at`` says from when on a relay may take a row that is not fresh. If that moment lies
ahead, the row is leased if it has an owner, ``leased_by``, and waits if it has none. Once it is
over, the row belongs to nobody.

Each edge below is one statement. It names the row's token wherever it relies on what was read
before: every insert, replacement, lease and return gives the row a new one, so that whoever is late
changes nothing.

==========================  ============================================  ====================
edge                        statement                                     made by
==========================  ============================================  ====================
→ fresh                     INSERT, in the caller's transaction           enqueue
→ outbox                    INSERT, when the broker cannot be reached     enqueue
fresh, outbox → deleted     DELETE by token, once the broker has it       the commit hook
fresh → outbox              UPDATE at first sight; the token stays        relay
→ hold                      INSERT                                        worker, enqueue
any, not leased → hold      UPDATE (requeue)                              operator
older → hold                UPDATE where that is what it is               worker
leased, gone → hold         UPDATE where as new, if it is held again      worker
outbox, hold → leased       UPDATE by token, where claimable              relay
leased outbox → deleted     DELETE by token, while the lease lasts        relay
leased hold → gone          UPDATE by token, while the lease lasts        relay
leased → outbox, hold       UPDATE by token, when publishing failed       relay
leased → leased by another  the lease is over; as above                   relay
hold → gone                 UPDATE where not leased (cancel)              operator
gone → deleted              DELETE once it was kept long enough           relay
hold → hold                 UPDATE due_at where not leased (reschedule)   operator
==========================  ============================================  ====================

A lease that is over ends the right to change the row, even if nobody has taken it: what was
published under it may have come back to be held meanwhile, found this row there, and relied on it.

A worker may die when it has stored a hold and not yet acknowledged the delivery. The delivery then
comes again, perhaps after the hold was published. The hold that is gone tells that it is done.

A dead letter is one row of `DeadLetter`, open until an operator resolves it:

=====================  ==========================================================  =============
edge                   statement                                                   made by
=====================  ==========================================================  =============
→ open                 INSERT, unless one of its filing key is there               worker
open → requeued        UPDATE where open; the hold follows in the transaction      operator
requeued → open        UPDATE in the same transaction, if nothing can be held      operator
open → discarded       UPDATE where open                                           operator
resolved → gone        DELETE once the retention is over                           worker
=====================  ==========================================================  =============

The row of a resolved letter stays for the retention, so that a late copy of the letter is not filed
as a new one.
"""
