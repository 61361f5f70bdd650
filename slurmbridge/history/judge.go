package history

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// ranToEnd reports whether a job in that state ran to its end. One that Slurm has forgotten may have.
func ranToEnd(state string) bool { return state == "COMPLETED" || state == "" }

// Failed reports whether the job ended by itself, with an error, or because the node's memory ran out.
func Failed(state string) bool { return state == "FAILED" || state == "OUT_OF_MEMORY" }

// ranOutOfTime reports whether Slurm ended the job at its time limit or its owner's deadline.
func ranOutOfTime(state string) bool { return state == "TIMEOUT" || state == "DEADLINE" }

// Killed reports whether Slurm, or the node's kernel, ended the job while it computed.
func Killed(state string) bool {
	return ranOutOfTime(state) || state == "CANCELLED" || state == "PREEMPTED" || state == "OUT_OF_MEMORY"
}

// nearlyFull is the part of a GPU's memory in use from which on a failed run is assumed to have lacked some.
const nearlyFull = 0.9

// shortest is how long an application must take alone, s, for a run of it to say something about sharing:
// starting and ending take a second or two in any case, and Slurm reports times in whole seconds.
const shortest = 30

// tellingS is how long a run that was ended before its own end must have lasted for its use to say what its application
// uses, s: some load for minutes before they compute (an assumption).
const tellingS = 120

// Judgement is what an outcome is made from.
type Judgement struct {
	Run   *Run
	Spec  *rlcore.GPUSpec // of the card, nil = which one it was isn't known
	Limit float64         // the site's contract, 0 = none
	// Alone: it was requeued to run alone after it had failed while sharing.
	Alone bool
	// FailsAlone: runs of the application have failed alone before. Served: one has ended well under MPS.
	FailsAlone, Served bool
	// Unserved: the run before this one, which is its repetition alone, was Outcome.Unserved.
	Unserved bool
	// MaxDelayS is how long the bridge alone may keep a job waiting, s.
	MaxDelayS float64
}

// Judge concludes what a run means. It changes nothing.
func (j *Judgement) Judge(m *interference.Model) Outcome {
	o := j.outcome()
	r, member := j.Run, j.Run.Ending.Member
	state, suspended := r.State(), r.Ending.Suspended
	switch {
	case Failed(state) && member != nil && member.Tried:
		o.TriedMiB, o.Ours = member.MemMiB, true
		o.Suspect = fmt.Sprintf("it was tried with %d MiB of GPU memory", o.TriedMiB)
	case Failed(state):
		s := j.suspect()
		switch {
		case s.Ours && r.Shared():
			o.Suspicion = s
		case j.fellAlone(&o):
			o.Suspect, o.Ours = "its MPS server failed, and no process of its own is known to have faulted", true
		case j.unserved(&o):
			o.Unserved, o.Ours, o.Blamed = true, true, j.present()
			o.Suspect = fmt.Sprintf("it failed after %.0f s, at its application's first run under MPS", r.DurationS())
		case r.Shared():
			o.Suspicion = s
		default:
			o.Cleared = j.Alone
		}
	case ranOutOfTime(state) && r.Shared():
		o.Suspicion = j.overrun()
	case !ranToEnd(state):
		// A time limit that strikes is the application's way to end, for some.
		o.Cleared, o.Learned = ranOutOfTime(state) && j.Alone, state == "TIMEOUT" && r.Complete && !suspended
	case state == "" && r.Profile != nil && r.DurationS() < min(r.Profile.DurationS/2, r.Profile.ShortS()):
		// Slurm has forgotten it, and it may well have failed.
	case suspended:
		// How long it took says nothing.
	default:
		o.Learned = !r.Shared() && r.Complete
		o.NoMPS = j.Unserved && !j.Served && !o.MPS && state == "COMPLETED"
		j.measure(&o, m)
	}
	if !o.Learned && !ranToEnd(state) && state != "TIMEOUT" && o.TriedMiB == 0 {
		o.Cut = !r.Shared() && r.Complete && !suspended && r.DurationS() >= tellingS
		o.Learned = o.Cut
	}
	return o
}

// outcome is what the run says before it is judged.
func (j *Judgement) outcome() Outcome {
	r, e := j.Run, &j.Run.Ending
	o := Outcome{
		Contract: cmp.Or(r.Terms.MaxSlowdown, j.Limit),
		HeldS:    max(0, e.DelayedS-j.MaxDelayS) + e.PastLeaseS,
	}
	if m := e.Member; m != nil {
		o.MPS = m.Shares < job.Units && !j.Alone && !j.withoutMPS()
		o.Contract = cmp.Or(m.Contract, o.Contract)
	}
	if r.Profile != nil {
		o.SoloS = r.Profile.DurationS
	}
	return o
}

// soon is how long a run may take that fails because MPS can't do what its application wants: it shows at its start.
const soon = 15 * time.Second

// unserved reports whether a run that failed may have failed for MPS: its application, which has never ended well
// there, and never failed alone, reads a number of its GPU or uses what MPS lacks
// (see contrib/doc/users.md, "What can't run under MPS").
func (j *Judgement) unserved(o *Outcome) bool {
	return o.MPS && !j.Alone && !j.Served && !j.FailsAlone && j.Run.App != "" && j.Run.DurationS() < soon.Seconds()
}

// fellAlone reports whether a run that failed was alone under MPS and fell with its server, which it would not have had
// on plain Slurm. A fault of its own may be the reason where the server's log names no process: then it has failed
// alone next time.
func (j *Judgement) fellAlone(o *Outcome) bool {
	return o.MPS && !j.Run.Shared() && j.Run.MPSFault && !j.Run.Faulted && !j.FailsAlone
}

// present are the applications of the co-runners that were there when a run ended, or while its time ran out: memory
// runs out at once, time all along.
func (j *Judgement) present() []rlcore.Identity {
	return j.apps(func(c *CoRunner) bool {
		return c.AtEnd || ranOutOfTime(j.Run.State()) && c.ToS-c.FromS > hardly*j.Run.DurationS()
	})
}

// apps are the known applications of some co-runners.
func (j *Judgement) apps(of func(*CoRunner) bool) (apps []rlcore.Identity) {
	for i := range j.Run.CoRunners {
		if c := &j.Run.CoRunners[i]; c.App != "" && of(c) {
			apps = append(apps, c.identity())
		}
	}
	return apps
}

// hardly is the part of a run below which a co-runner has not cost it much.
const hardly = 0.1

// measure compares a run that came to its end, and shared its GPU, with the solo time. Where runs of the application
// differ much in length, its time says little of how much it was slowed.
func (j *Judgement) measure(o *Outcome, m *interference.Model) {
	r := j.Run
	if r.Profile == nil || !(o.SoloS > 0) || !r.Shared() {
		return
	}
	soloS, told := r.Profile.SlowdownBy()
	if told {
		o.Slowdown = r.DurationS() / soloS
	}
	measured := r.State() != "" && !r.WithoutMPS
	if done := r.doneS(); measured && done > 0 {
		o.BelievedS, o.LengthS = done, r.Profile.TookS(done, r.DurationS())
	}
	if o.SoloS < shortest {
		return
	}
	if measured && told {
		o.Lessons = j.lessons(m, soloS)
	}
	if atLeast := r.DurationS() / r.Profile.LongS(); o.Contract > 0 && atLeast > o.Contract {
		o.Broken, o.Slowdown = true, max(o.Slowdown, atLeast)
	}
}

// suspect says why sharing may be the reason for a failure. The application has ended well alone (it would not have
// shared a GPU otherwise), and what a co-runner really takes may be more than was known.
func (j *Judgement) suspect() Suspicion {
	r, card := j.Run, j.Run.CardMemMiB()
	by, with, killed := r.brokenBy(), j.fellWith(), j.killed()
	s := Suspicion{Ours: true, Blamed: j.present()}
	switch {
	case r.MPSFault && r.Faulted:
		s.Suspect, s.Fault = "a process of its own faulted, and with it the MPS server it shared", true
		s.Blamed = nil
	case r.MPSFault && by != nil:
		s.Suspect = fmt.Sprintf("a process of job %s faulted, and with it the MPS server they shared", by.Ref)
		s.Blamed = j.apps(func(c *CoRunner) bool { return c.Faulted })
	case r.MPSFault:
		s.Suspect, s.Fault = "the MPS server it shared failed", true
	case with != nil:
		s.Fault = true
		s.Suspect = fmt.Sprintf("it failed in the same moment as job %s, which shared its GPU: a fault ends all clients of "+
			"an MPS server", with.Ref)
	case card > 0 && r.PeakMemMiB >= nearlyFull*card:
		s.Suspect = "GPU memory was nearly full"
	case r.Profile != nil && card > 0 && r.PeakMemMiB+r.Profile.Peak().MemMiB > card:
		s.Suspect = "GPU memory may not have sufficed"
	case r.PeakMemMiB > surely*j.knownMiB():
		s.Suspect = "more GPU memory was held than was known of the jobs there"
	case killed != nil:
		s.Blamed = nil
		s.Suspect = fmt.Sprintf("it failed when Slurm ended job %s (%s), which shared its GPU: a client that is killed may "+
			"break the MPS server's others", killed.Ref, killed.How.State)
	case r.Profile != nil && !j.FailsAlone:
		s.Suspect, s.Ours = "its application has not failed alone", false
	default:
		return Suspicion{}
	}
	return s
}

// withoutMPS reports whether the run had no MPS server.
func (j *Judgement) withoutMPS() bool {
	return j.Run.WithoutMPS || j.Spec != nil && j.Spec.Sharing == contention.TimeSlice.Name
}

// client is the first co-runner of some kind at the run's MPS server, nil = there is none.
func (j *Judgement) client(is func(*CoRunner) bool) *CoRunner {
	for i := range j.Run.CoRunners {
		if c := &j.Run.CoRunners[i]; !j.withoutMPS() && is(c) {
			return c
		}
	}
	return nil
}

// SameMoment is how far apart Slurm sees jobs end that a fault of their MPS server ends together: their processes have
// to notice, and times are whole seconds.
const SameMoment = 2 * time.Second

// fellWith is a co-runner that failed in the same moment, nil = none did. From Volta on a server forgets a fault with
// its last client, within milliseconds, so that this is what remains of it. Jobs of one application that started
// together fail together by themselves.
func (j *Judgement) fellWith() *CoRunner {
	near := func(a, b time.Time) bool { return !a.IsZero() && !b.IsZero() && a.Sub(b).Abs() <= SameMoment }
	own := &j.Run.Ending.How
	return j.client(func(c *CoRunner) bool {
		return c.How.State == "FAILED" && near(c.How.End, own.End) &&
			(c.App != j.Run.App || !near(c.How.Start, own.Start))
	})
}

// mayHaveBroken reports whether the run fell with its MPS server, and its own process may have broken it.
func (j *Judgement) mayHaveBroken() bool {
	if r := j.Run; r.MPSFault {
		return r.Faulted || r.brokenBy() == nil
	}
	return j.fellWith() != nil
}

// afterKill is how long after the end of a job that Slurm ends its processes may still be killed (KillWait, by default
// 30 s), and the job's neighbours notice it.
const afterKill = 30*time.Second + SameMoment

// killed is the co-runner that Slurm ended while it computed, shortly before the job failed; nil = none. What a killed
// client of an MPS server leaves undone is undefined for the server's other clients (NVIDIA's manual of MPS, early
// termination): no application is to blame.
func (j *Judgement) killed() *CoRunner {
	return j.client(func(c *CoRunner) bool {
		after := j.Run.Ending.How.End.Sub(c.How.End)
		return Killed(c.How.State) && !c.How.End.IsZero() && after >= -SameMoment && after <= afterKill
	})
}

// surely is by how much the memory of jobs may exceed what is known of them, as a factor, before it counts as more.
const surely = 1.25

// knownMiB is the most memory that the jobs there were known to hold, +Inf = one of them wasn't known.
func (j *Judgement) knownMiB() float64 {
	sum := 0.0
	for _, c := range append([]CoRunner{{Profile: j.Run.Profile}}, j.Run.CoRunners...) {
		if c.Profile == nil {
			return math.Inf(1)
		}
		sum += c.Profile.Peak().MemMiB
	}
	return sum
}

// overrun says why sharing may be the reason that a job ran out of time: alone it would have ended before, and it did
// less solo work than its own limit, which is all that plain Slurm would have let it do.
func (j *Judgement) overrun() Suspicion {
	p, e := j.Run.Profile, &j.Run.Ending
	if p == nil || !e.known() {
		return Suspicion{}
	}
	span := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)).Round(time.Second) }
	alone, own, left := p.LongS(), e.LimitS-e.LentS, e.Deadline.Sub(j.Run.Start).Seconds()
	why := ""
	switch {
	case j.Run.State() == "DEADLINE" && !e.Deadline.IsZero() && alone < left:
		why = fmt.Sprintf("it ran past its deadline, %s after its start; alone it takes %s", span(left), span(p.DurationS))
	case j.Run.State() != "DEADLINE" && alone < own && e.leastS(j.Run.DurationS()) < own:
		why = fmt.Sprintf("it ran out of its time limit of %s; alone it takes %s", span(e.LimitS), span(p.DurationS))
	default:
		return Suspicion{}
	}
	return Suspicion{Suspect: why, Ours: true, Fault: j.mayHaveBroken(), Blamed: j.present()}
}

// lessons is what the run teaches of each company that it had.
func (j *Judgement) lessons(m *interference.Model, soloS float64) (all []interference.Lesson) {
	r := j.Run
	if j.Spec == nil {
		return nil // it says nothing of any card
	}
	overlaps := make([]interference.Overlap, len(r.CoRunners))
	for i, c := range r.CoRunners {
		overlaps[i] = interference.Overlap{Profile: c.Profile, FromS: c.FromS, ToS: c.ToS}
	}
	companies, part := interference.Companies(r.DurationS(), overlaps)
	slowdown, believed := interference.CoRunSlowdown(r.DurationS(), soloS, part), math.NaN()
	if done := r.doneS(); done > 0 {
		believed = interference.CoRunSlowdown(r.DurationS(), done, part)
	}
	for _, c := range companies {
		members := append([]*rlcore.Profile{r.Profile}, c.With...)
		if l, ok := m.Lesson(j.Spec, members, slowdown, believed, c.Part*part); ok {
			all = append(all, l)
		}
	}
	return all
}
