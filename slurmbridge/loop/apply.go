package loop

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"
)

// applier carries plans out.
type applier struct {
	slurm   job.Slurm
	journal Journal
	tracker *tracker.Tracker
	gate    *Gate
	// comments says which AdminComments are the bridge's to write.
	comments *comments
	mode     job.Mode
	metrics  *Metrics
	logger   *slog.Logger
	now      func() time.Time
	fault    func(step string)
}

// apply carries a plan out. A group is written down before its first change and again
// after its last, so that a bridge that finds it half made can restore it.
func (a *applier) apply(ctx context.Context, p *job.Plan) {
	settled := true
	repairs := release.Merge(p.Repairs)
	for i, err := range a.sendAll(ctx, repairs) {
		a.log(ctx, 0, &repairs[i], err)
		settled = settled && (err == nil || repairs[i].Step != job.StepRestore)
	}
	a.fault("repaired")
	if !settled {
		// A job that could not be restored may be starting where a group was to go: poll
		// again first.
		p.Groups = nil
		return
	}
	for i := range p.Groups {
		p.Groups[i].Group.ID = a.tracker.NewID()
	}
	if a.mode == job.Shadow {
		a.logIntended(ctx, p.Groups)
		return
	}
	a.makeGroups(ctx, p.Groups, p.Order)
}

// logIntended writes down what would be done with the groups of a plan.
func (a *applier) logIntended(ctx context.Context, groups []job.PlannedGroup) {
	for i := range groups {
		for _, c := range slices.Concat(groups[i].Prepare, groups[i].Release) {
			a.log(ctx, groups[i].Group.ID, &c, nil)
		}
	}
}

// makeGroups makes the groups of a plan; groups of a node with several GPUs are made together.
func (a *applier) makeGroups(ctx context.Context, groups []job.PlannedGroup, order map[string]int) {
	a.readComments(ctx, groups)
	done := make([]bool, len(groups))
	var sides [][]*job.PlannedGroup
	members := 0
	for i := range groups {
		if done[i] {
			continue
		}
		_, ordered := order[groups[i].Group.Members[0].Ref]
		var side []*job.PlannedGroup // that start on one node
		for k := i; k < len(groups); k++ {
			g := &groups[k]
			if k > i && (!ordered || g.Group.Node != groups[i].Group.Node) {
				continue
			}
			if done[k] = true; a.adopt(ctx, g) {
				side = append(side, g)
				members += len(g.Group.Members)
			}
		}
		sides = append(sides, side)
		if members >= atOnce {
			a.release(ctx, a.prepare(ctx, sides), order)
			sides, members = nil, 0
		}
	}
	a.release(ctx, a.prepare(ctx, sides), order)
}

// atOnce is of how many members groups are prepared before the first of them are released: many
// cost little more than one, and the first don't wait for the last.
const atOnce = 100

// readComments reads the AdminComments that the changes of groups are to replace.
func (a *applier) readComments(ctx context.Context, groups []job.PlannedGroup) {
	var refs []string
	for i := range groups {
		for _, c := range slices.Concat(groups[i].Prepare, groups[i].Release) {
			if c.Update.AdminComment != nil {
				refs = append(refs, c.Update.Jobs...)
			}
		}
	}
	// All of them, however many: one that wasn't read gets no stamp.
	for some := range slices.Chunk(slices.Compact(slices.Sorted(slices.Values(refs))), mostRead) {
		a.comments.read(ctx, some)
	}
}

// adopt writes a group down, unless the gate might open before it is made. false: it isn't
// to be made.
func (a *applier) adopt(ctx context.Context, p *job.PlannedGroup) bool {
	if !a.gate.Holds() {
		a.logger.Warn("group not made: the gate may open meanwhile", "jobs", strings.Join(p.Group.Refs(), ","), "lease_left", a.gate.Left())
		return false
	}
	g := p.Group
	if err := a.journal.SaveGroup(ctx, &g); err != nil {
		// A group that could not be restored after a crash is not made. Jobs don't wait for
		// a disk: they go as they are.
		a.logger.Error("journal", "err", err)
		a.letGo(ctx, g.Refs())
		return false
	}
	a.tracker.Adopt(&g)
	a.fault("journaled")
	return true
}

// letGo makes jobs ordinary ones that wait for nothing but the bridge.
func (a *applier) letGo(ctx context.Context, refs []string) {
	none := ""
	_ = a.change(ctx, 0, &job.Change{
		Step: job.StepUngate, Why: "their group can't be written down", Was: map[string]string{},
		Update: job.Update{Jobs: refs, Dependency: &none, StartNow: true},
	})
}

// prepare sets what members of groups are to have when they start; equal members of a node share
// one update. It returns the groups that are completely prepared; the next poll restores the
// members of incomplete ones.
func (a *applier) prepare(ctx context.Context, sides [][]*job.PlannedGroup) [][]*job.PlannedGroup {
	var all []job.Change
	of := map[string]*job.PlannedGroup{}
	for _, side := range sides {
		var here []job.Change
		for _, p := range side {
			for i := range p.Prepare {
				for _, ref := range p.Prepare[i].Update.Jobs {
					of[ref] = p
				}
				here = append(here, p.Prepare[i])
			}
		}
		all = append(all, release.Merge(here)...)
	}
	failed := map[*job.PlannedGroup]bool{}
	for i, err := range a.whileClosed(ctx, of, all) {
		for _, ref := range all[i].Update.Jobs {
			failed[of[ref]] = failed[of[ref]] || err != nil
		}
		if err == nil {
			a.fault("prepare")
		}
	}
	for i := range sides {
		sides[i] = slices.DeleteFunc(sides[i], func(p *job.PlannedGroup) bool { return failed[p] })
	}
	return slices.DeleteFunc(sides, func(side []*job.PlannedGroup) bool { return len(side) == 0 })
}

// release lets prepared groups start, whether the gate is still closed or not: their members
// are what they are to be.
func (a *applier) release(ctx context.Context, sides [][]*job.PlannedGroup, order map[string]int) {
	var ready []job.Change
	of := map[string]*job.PlannedGroup{}
	for _, side := range sides {
		var here []job.Change
		for _, p := range side {
			for _, ref := range p.Group.Refs() {
				of[ref] = p
			}
			here = append(here, p.Release...)
		}
		if len(side) > 1 {
			here = release.Merge(here)
		}
		for i := range here {
			slices.SortStableFunc(here[i].Update.Jobs, func(x, y string) int { return order[x] - order[y] })
		}
		ready = append(ready, here...)
	}
	failed := map[*job.PlannedGroup]bool{} // still prepared: the next poll restores their members
	for i, err := range a.changeAll(ctx, of, ready) {
		for _, ref := range ready[i].Update.Jobs {
			failed[of[ref]] = failed[of[ref]] || err != nil
		}
		if err == nil {
			a.fault("release")
		}
	}
	for _, side := range sides {
		if slices.ContainsFunc(side, func(p *job.PlannedGroup) bool { return failed[p] }) {
			continue
		}
		for _, p := range side {
			a.released(ctx, p)
		}
	}
}

// released notes that a group may start.
func (a *applier) released(ctx context.Context, p *job.PlannedGroup) {
	g := a.tracker.Groups[p.Group.ID]
	release.Released(g)
	p.Group.State = g.State
	a.metrics.released(g)
	a.logger.Info("group released", "group", g.ID, "kind", g.Kind, "node", g.Node, "gpu", g.GPU,
		"jobs", strings.Join(g.Refs(), ","))
	if err := a.journal.SaveGroup(ctx, g); err != nil {
		a.logger.Error("journal", "err", err)
	}
}

// errOpening says that a change was not sent, since the gate might open before it arrives.
var errOpening = errors.New("not sent: the gate may open before it arrives")

// whileClosed applies changes that must come to Slurm before the gate opens, of members of the given
// groups.
func (a *applier) whileClosed(ctx context.Context, of map[string]*job.PlannedGroup, all []job.Change) []error {
	if len(all) == 0 {
		return nil
	}
	if !a.gate.Holds() {
		errs := make([]error, len(all))
		for i := range all {
			errs[i] = errOpening
			a.logOf(ctx, of, &all[i], errOpening)
			a.logger.Warn("group left half made", "jobs", strings.Join(all[i].Update.Jobs, ","), "err", errOpening)
		}
		return errs
	}
	for i := range all {
		if u := &all[i].Update; u.AdminComment != nil && !a.comments.ours(u.Jobs) {
			u.AdminComment = nil
		}
	}
	ctx, cancel := context.WithTimeout(ctx, a.gate.Left())
	defer cancel()
	errs := a.changeAll(ctx, of, all)
	for i := range all {
		if text := all[i].Update.AdminComment; text != nil {
			a.comments.wrote(all[i].Update.Jobs, *text)
		}
	}
	return errs
}

// changeAll applies changes of members of the given groups, by ref.
func (a *applier) changeAll(ctx context.Context, of map[string]*job.PlannedGroup, all []job.Change) []error {
	errs := a.sendAll(ctx, all)
	for i := range all {
		a.logOf(ctx, of, &all[i], errs[i])
	}
	return errs
}

// logOf keeps a change in the journal, with each group the part that is about its members.
func (a *applier) logOf(ctx context.Context, of map[string]*job.PlannedGroup, c *job.Change, outcome error) {
	parts := map[int64]*job.Change{}
	var ids []int64
	for _, ref := range c.Update.Jobs {
		id := of[ref].Group.ID
		part := parts[id]
		if part == nil {
			one := *c
			one.Update.Jobs, one.Was = nil, map[string]string{}
			part = &one
			parts[id], ids = part, append(ids, id)
		}
		part.Update.Jobs = append(part.Update.Jobs, ref)
		part.Was[ref] = c.Was[ref]
	}
	for _, id := range ids {
		a.log(ctx, id, parts[id], outcome)
	}
}

// change applies one change and keeps it in the journal. In shadow it only does the latter.
func (a *applier) change(ctx context.Context, group int64, c *job.Change) error {
	err := a.sendAll(ctx, []job.Change{*c})[0]
	a.log(ctx, group, c, err)
	return err
}

// sendAll applies changes. In shadow it does nothing.
func (a *applier) sendAll(ctx context.Context, all []job.Change) []error {
	if len(all) == 0 || a.mode != job.Active {
		return make([]error, len(all))
	}
	updates := make([]job.Update, len(all))
	for i := range all {
		updates[i] = all[i].Update
	}
	errs := a.slurm.UpdateAll(ctx, updates)
	for i, err := range errs {
		c := &all[i]
		a.metrics.changed(string(c.Step), err)
		switch {
		case errors.Is(err, job.ErrNoJob):
			a.logger.Info("job is gone or running", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","))
		case err != nil:
			a.logger.Warn("change refused", "step", c.Step, "jobs", strings.Join(c.Update.Jobs, ","), "err", err)
		}
	}
	return errs
}

func (a *applier) log(ctx context.Context, group int64, c *job.Change, outcome error) {
	if err := a.journal.Log(ctx, a.now(), a.mode, group, c, outcome); err != nil {
		a.logger.Error("journal", "err", err)
	}
}

// UngateAll frees every job at once: the gate is opened, and jobs prepared for a group
// that hasn't started get back what they had. It works without a running daemon and is
// what `slurmbridge open` does. It returns how many jobs it freed.
func UngateAll(ctx context.Context, s job.Slurm, t *tracker.Tracker, gateFile string) (jobs int, err error) {
	if err := RemoveGateFile(gateFile); err != nil {
		return 0, err
	}
	snap, err := s.Poll(ctx)
	if err != nil {
		return 0, fmt.Errorf("poll: %w", err)
	}
	pending := map[string]*job.Job{}
	for i := range snap.Jobs {
		if j := &snap.Jobs[i]; j.State == job.Pending {
			pending[j.Ref] = j
			if release.Behind(snap.Gates, j) {
				jobs++
			}
		}
	}
	var errs []error
	var back []job.Update
	for ref, seat := range t.Seats() {
		j := pending[ref]
		if j == nil || release.IsBack(seat.Group, seat.Member, j) {
			continue // over, running, or what it was before: nothing holds it but the gate
		}
		back = append(back, release.Restore(seat.Group, seat.Member, j, "", job.Cause{Kind: job.CauseUngated}.String(), snap.At).Update)
		if !release.Behind(snap.Gates, j) {
			jobs++
		}
	}
	lost, refs := mayBeOrphans(snap, t)
	said := map[string]job.Description{}
	if len(refs) > 0 {
		said, err = s.Describe(ctx, refs)
		errs = append(errs, err)
	}
	for _, j := range lost {
		c, ok := release.Recover(j, said[j.Ref].AdminComment, "", snap.At)
		if !ok {
			continue
		}
		back = append(back, c.Update)
		if !release.Behind(snap.Gates, j) {
			jobs++
		}
	}
	for _, err := range s.UpdateAll(ctx, back) {
		if !errors.Is(err, job.ErrNoJob) {
			errs = append(errs, err)
		}
	}
	for _, gate := range snap.Gates {
		if !gate.Open {
			errs = append(errs, s.OpenGate(ctx, gate.ID))
		}
	}
	return jobs, errors.Join(errs...)
}
