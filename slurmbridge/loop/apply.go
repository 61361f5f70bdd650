package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// apply carries out a plan. A group is written to the journal before its first change and after its last one, so that a
// bridge that starts in between finds it half made and restores it.
func (b *Bridge) apply(ctx context.Context, p *job.Plan) {
	b.spareEdits(ctx, p)
	settled := true
	b.comments.spareForeign(p.Repairs)
	repairs := release.Merge(p.Repairs)
	for i, err := range b.sendAll(ctx, repairs) {
		b.note(ctx, nil, &repairs[i], err)
		settled = settled && (err == nil || repairs[i].Step != job.StepRestore)
	}
	b.fault("repaired")
	if !settled {
		// A job that could not be restored may be starting where a group was to go: poll again first.
		p.Groups = nil
		return
	}
	of := map[string]*making{}
	for i := range p.Groups {
		g := &p.Groups[i]
		g.Group.ID = b.tracker.NewID()
		m := &making{planned: g}
		for _, ref := range g.Group.Refs() {
			of[ref] = m
		}
	}
	if b.acting() == job.Shadow {
		for _, c := range p.Changes()[len(p.Repairs):] {
			b.note(ctx, of, &c, nil)
		}
		return
	}
	b.makeGroups(ctx, p, of)
}

// spareEdits removes from a plan the jobs that their owners or an admin have edited since the poll, seconds ago, and
// the groups of these jobs: the bridge would undo the edits (see [tracker.Tracker.Edited]). Such a job is still
// restored, since with the shares of a group that isn't made it could start where another group is to go.
func (b *Bridge) spareEdits(ctx context.Context, p *job.Plan) {
	var refs []string
	for _, c := range p.Changes() {
		refs = append(refs, c.Update.Jobs...)
	}
	if len(refs) == 0 || b.acting() != job.Active {
		return
	}
	slices.Sort(refs)
	edited := b.comments.readAgain(ctx, slices.Compact(refs))
	p.Repairs = slices.DeleteFunc(p.Repairs, func(c job.Change) bool {
		return c.Step != job.StepRestore && slices.ContainsFunc(c.Update.Jobs, func(ref string) bool { return edited[ref] })
	})
	p.Groups = slices.DeleteFunc(p.Groups, func(g job.PlannedGroup) bool {
		mine := slices.DeleteFunc(g.Group.Refs(), func(ref string) bool { return !edited[ref] })
		for _, ref := range mine {
			b.tracker.Edited(ref)
		}
		return len(mine) > 0
	})
}

// making is a planned group on its way to Slurm. failed: one of its changes failed, and the next poll restores its
// members.
type making struct {
	planned *job.PlannedGroup
	failed  bool
}

func (m *making) hasFailed() bool { return m.failed }

// makeGroups makes the groups of a plan; groups of a node with several GPUs are made together. of finds them by their
// members.
func (b *Bridge) makeGroups(ctx context.Context, p *job.Plan, of map[string]*making) {
	memberships := b.tracker.Memberships()
	var sides [][]*making
	members := 0
	for _, side := range sidesOf(p, of) {
		side = slices.DeleteFunc(side, func(m *making) bool { return !b.enter(ctx, m.planned, memberships) })
		for _, m := range side {
			members += len(m.planned.Group.Members)
		}
		sides = append(sides, side)
		if members >= atOnce {
			b.makeSides(ctx, sides, of, p.Order)
			sides = nil
			members = 0
		}
	}
	b.makeSides(ctx, sides, of, p.Order)
}

// sidesOf collects the groups that start on the same node; the only GPU of a node has a group by itself.
func sidesOf(p *job.Plan, of map[string]*making) (sides [][]*making) {
	at := map[string]int{} // by node
	for i := range p.Groups {
		g := &p.Groups[i].Group
		k, there := at[g.Node]
		if !there {
			k = len(sides)
			sides = append(sides, nil)
		}
		if _, ordered := p.Order[g.Members[0].Ref]; ordered {
			at[g.Node] = k
		}
		sides[k] = append(sides[k], of[g.Members[0].Ref])
	}
	return sides
}

// atOnce is how many members are prepared before the first of them are released. Many cost little more than one, and
// the first don't wait for the last.
const atOnce = 100

// enter writes a group to the journal and adds it to the tracker. It returns false if the group must not be made: the
// gate might open before.
func (b *Bridge) enter(ctx context.Context, p *job.PlannedGroup, memberships map[string]tracker.Membership) bool {
	if !b.Gate.Holds() {
		b.Log.Warn("group not made: the gate may open meanwhile", "jobs", strings.Join(p.Group.Refs(), ","), "lease_left",
			b.Gate.Left())
		return false
	}
	g := p.Group
	if err := b.Journal.SaveGroup(ctx, &g); err != nil {
		// After a crash such a group could not be restored, so it is not made. Jobs don't wait for a disk: they are ungated.
		b.Log.Error("journal", "err", err)
		none := ""
		c := job.Change{
			Step: job.StepUngate, Why: "their group can't be written down",
			Update: job.Update{Jobs: g.Refs(), Dependency: &none, StartNow: true},
		}
		b.note(ctx, nil, &c, b.sendAll(ctx, []job.Change{c})[0])
		return false
	}
	b.tracker.Add(&g, memberships)
	b.fault("journaled")
	return true
}

// makeSides prepares groups and then lets them start. What members are to have when they start is set while the gate
// keeps them; equal members of a node share one update.
func (b *Bridge) makeSides(ctx context.Context, sides [][]*making, of map[string]*making, order map[string]int) {
	var prepare, let []job.Change
	for _, side := range sides {
		var here []job.Change
		for _, m := range side {
			here = append(here, m.planned.Prepare...)
		}
		prepare = append(prepare, release.Merge(here)...)
	}
	b.change(ctx, of, prepare, true)
	for i := range sides {
		sides[i] = slices.DeleteFunc(sides[i], (*making).hasFailed)
		var here []job.Change
		for _, m := range sides[i] {
			here = append(here, m.planned.Release)
		}
		here = release.Merge(here)
		for k := range here {
			slices.SortStableFunc(here[k].Update.Jobs, func(x, y string) int { return order[x] - order[y] })
		}
		let = append(let, here...)
	}
	b.change(ctx, of, let, false) // the gate may open meanwhile: members have their shares and nodes
	for _, side := range sides {
		if slices.ContainsFunc(side, (*making).hasFailed) {
			continue
		}
		for _, m := range side {
			b.released(ctx, m.planned)
		}
	}
}

// released marks a group as released.
func (b *Bridge) released(ctx context.Context, p *job.PlannedGroup) {
	g := b.tracker.Groups[p.Group.ID]
	release.Released(g)
	p.Group.State = g.State
	b.Metrics.released(g)
	b.Log.Info("group released", "group", g.ID, "kind", g.Kind, "where", g.Where(),
		"jobs", strings.Join(g.Refs(), ","))
	b.logged(b.Journal.SaveGroup(ctx, g))
}

// errOpening says that a change was not sent, since the gate might open before it arrives.
var errOpening = errors.New("not sent: the gate may open before it arrives")

// change applies changes of members of the given groups, by ref. closed: they must come to Slurm before the gate opens.
func (b *Bridge) change(ctx context.Context, of map[string]*making, all []job.Change, closed bool) {
	if len(all) == 0 {
		return
	}
	var errs []error
	if closed && !b.Gate.Holds() {
		errs = slices.Repeat([]error{errOpening}, len(all))
		b.Log.Warn("groups left half made", "changes", len(all), "err", errOpening)
	} else {
		if closed {
			b.comments.spareForeign(all)
			within, cancel := context.WithTimeout(ctx, b.Gate.Left())
			defer cancel()
			ctx = within
		}
		errs = b.sendAll(ctx, all)
	}
	for i := range all {
		for _, ref := range all[i].Update.Jobs {
			of[ref].failed = of[ref].failed || errs[i] != nil
		}
		b.note(ctx, of, &all[i], errs[i])
		if errs[i] == nil {
			b.fault(string(all[i].Step))
		}
	}
}

// sendAll applies changes. In shadow it does nothing.
func (b *Bridge) sendAll(ctx context.Context, all []job.Change) []error {
	if len(all) == 0 || b.acting() != job.Active {
		return make([]error, len(all))
	}
	updates := make([]job.Update, len(all))
	for i := range all {
		updates[i] = all[i].Update
	}
	errs := b.Slurm.UpdateAll(ctx, updates)
	b.Gate.Progress()
	for i, err := range errs {
		c := &all[i]
		b.Metrics.changed(string(c.Step), err)
		b.tracker.Sent(c, err, b.Now())
		if c.Update.AdminComment != nil {
			b.comments.wrote(c.Update.Jobs, *c.Update.AdminComment)
		}
		switch {
		case errors.Is(err, job.ErrNoJob):
			b.Log.Info("job is gone or running", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","))
		case err != nil:
			b.Log.Warn("change refused", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","), "err", err)
		}
	}
	return errs
}

// note writes a change to the journal, with the groups of its jobs, by ref.
func (b *Bridge) note(ctx context.Context, of map[string]*making, c *job.Change, outcome error) {
	groups := map[string]int64{}
	for _, ref := range c.Update.Jobs {
		if m := of[ref]; m != nil {
			groups[ref] = m.planned.Group.ID
		}
	}
	b.logged(b.Journal.Log(ctx, b.Now(), b.acting(), groups, c, outcome))
}

// UngateAll frees every job at once for `slurmbridge open`, without a running daemon: it opens the gate and restores
// the jobs that were prepared for a group that hasn't started. It returns how many jobs it freed.
func UngateAll(ctx context.Context, s job.Slurm, t *tracker.Tracker, gateFile string) (jobs int, err error) {
	if err := CloseGateFile(gateFile); err != nil {
		return 0, err
	}
	snap, err := s.Poll(ctx)
	if err != nil {
		return 0, fmt.Errorf("poll: %w", err)
	}
	pending := map[string]*job.Job{}
	freed := map[string]bool{}
	for i := range snap.Jobs {
		j := &snap.Jobs[i]
		if j.State != job.Pending {
			continue
		}
		pending[j.Ref] = j
		if release.Behind(snap.Gates, j) {
			freed[j.Ref] = true
		}
	}
	var back []job.Change
	for ref, s := range t.Memberships() {
		j := pending[ref]
		if j != nil && !release.IsBack(s.Member, j) {
			back = append(back, release.Restore(s.Member, j, "", job.CauseUngated.String(), snap.At))
		} // else it has ended, runs, or has its own request: nothing but the gate holds it
	}
	for _, j := range mayBeOrphans(snap, t) {
		if c, ok := release.Recover(j, "", snap.At); ok {
			back = append(back, c)
		}
	}
	updates := make([]job.Update, len(back))
	for i := range back {
		ref := back[i].Update.Jobs[0]
		freed[ref] = true
		updates[i] = back[i].Update
		if !strings.HasPrefix(pending[ref].AdminComment, job.CommentPrefix) { // the comment is not the bridge's
			updates[i].AdminComment = nil
		}
	}
	var errs []error
	for _, err := range s.UpdateAll(ctx, updates) {
		if !errors.Is(err, job.ErrNoJob) {
			errs = append(errs, err)
		}
	}
	for _, gate := range snap.Gates {
		if !gate.Open {
			errs = append(errs, s.OpenGate(ctx, gate.ID))
		}
	}
	return len(freed), errors.Join(errs...)
}

// mayBeOrphans lists the pending jobs in no known group that request less than a GPU's shares, or a node.
func mayBeOrphans(s *job.Snapshot, t *tracker.Tracker) (jobs []*job.Job) {
	memberships := t.Memberships()
	for i := range s.Jobs {
		j := &s.Jobs[i]
		given := j.Request.Kind == job.Shares && (j.Request.Count < job.Units || j.ReqNodes != "") ||
			j.Request.Kind == job.WholeGPU && j.ReqNodes != "" && release.Behind(s.Gates, j)
		if j.State == job.Pending && given && memberships[j.Ref].Group == nil && t.Unmanaged[j.Ref] == "" {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// orphans restores pending jobs with the shares and node of a group that the journal doesn't hold, since the journal
// was lost or can't be read. Next to other groups they could start on a GPU without room for them.
func (b *Bridge) orphans(in *plan.Input) (out []job.Change) {
	if b.acting() != job.Active {
		return nil
	}
	for _, j := range mayBeOrphans(in.Snap, b.tracker) {
		if c, ok := release.Recover(j, in.Gate, in.Snap.At); ok {
			b.Log.Warn("a job of a group that the journal doesn't know is restored", "job", j.Ref)
			out = append(out, c)
			in.Touched[j.Ref] = true
		}
	}
	return out
}
