package loop

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/google/renameio/v2"
)

// Gate keeps the one job that waiting jobs depend on. They wait while it is renewed; without
// renewal it ends by itself within one lease, and they are ordinary jobs.
//
// Each round keeps it (Tend). Between them Run renews it, so that a long round costs no lease. Run stops when rounds
// make no progress: a bridge that hangs holds its jobs no longer than leastStalled and one lease.
type Gate struct {
	Slurm job.Slurm
	// Name is this daemon's name; the gate's comment carries it. See Standby.
	Name  string
	Lease time.Duration
	// File names the gate to the job_submit script, and until when it is closed; "" = no
	// file is kept (shadow, or no script).
	File    string
	Sharing job.Sharing
	// Partition is the gate's own partition while that is up; "" = the gate is in each partition that has a node with
	// shares, so that it can end in any partition in which a job that it holds could start.
	Partition string
	// ByHand names users and partitions with jobs that may request a part of a GPU's shares by hand.
	ByHand ByHand
	// SharersOnly are partitions in which the job_submit script makes all of a GPU's shares of a request for a whole
	// one, where the release calls for it.
	SharersOnly []string
	Now         func() time.Time
	Log         *slog.Logger // nil = none

	// distrust is set while Slurm's report of the gate contradicts what was submitted, so that none is made; proved is the
	// release that reported the gate correctly. Only the rounds use them.
	distrust distrust
	proved   string
	unseen   int // gates in a row that Slurm had and that no poll has shown
	// mendAt is when the gate's partitions are next checked. closed: Partition isn't up, so the gate is in the jobs'.
	mendAt time.Time
	closed bool
	// instead names the partitions in which the gate is since Slurm refused the right ones, "" = it is in these.
	instead string
	// refused is why Slurm accepted no gate, createAt when the bridge tries again.
	refused  error
	createAt time.Time
	// openedFor is when the gate was last opened for jobs that Slurm didn't let go.
	openedFor time.Time

	// The gate file's lines about the last poll, and those of the site's rules for unchanged jobs of whole GPUs, which the
	// round sets before it tends the gate.
	polled, adopted string

	asking   sync.Mutex            // held during a command about the gate: one at a time
	lease    atomic.Pointer[lease] // the holder of asking replaces it; reading needs no lock
	other    lease                 // another daemon's, while this one is standby
	progress atomic.Int64          // when a round last came on, Unix ns
}

// lease is a gate and until when it is closed.
type lease struct {
	gate    string // "" = there is none
	account string // "" = the default one, which Slurm took
	expires time.Time
	// submitted is when the gate was created; an earlier poll can't show it.
	submitted time.Time
	seen      bool // by a poll
}

// ErrMisread says that Slurm reports a gate field with a value that the bridge didn't submit. Other jobs' fields may be
// misread, too, so none is changed.
var ErrMisread = errors.New("is not understood, and no job is touched")

// distrust explains why no gate is made for a while on this release of Slurm; nil = one is.
type distrust struct {
	why     error
	release string
	fields  []job.Misread // with another value than submitted
	until   time.Time
}

// How long the bridge makes no gate on a Slurm that misreports the gate or doesn't ungate jobs, and how many gates in a
// row may exist that no poll shows.
const (
	distrustFor = time.Hour
	mostUnseen  = 3
)

// Proved reports whether a poll has shown the gate with the submitted values on this release of Slurm.
func (g *Gate) Proved(release string) bool { return g.proved == release && g.distrust.fields == nil }

// prove checks that the poll shows the gate as it was submitted. Otherwise it opens the gate, which ungates all waiting
// jobs: the bridge changes no job whose fields it may misread.
func (g *Gate) prove(ctx context.Context, s *job.Snapshot) error {
	d := g.distrust
	if d.why != nil && (d.release != s.Release || !g.Now().Before(d.until)) {
		g.distrust = distrust{}
		g.unseen = 0
	}
	for i := range s.Gates {
		seen := &s.Gates[i]
		switch {
		case seen.Open || seen.ID != g.ID():
		case len(seen.Misread) > 0:
			g.misread(s, seen.Misread)
		default:
			g.proved = s.Release
			g.unseen = 0
		}
	}
	if g.unseen >= mostUnseen && g.distrust.why == nil {
		g.misread(s, []job.Misread{{Field: "squeue", Says: "", Truth: "the gate was submitted"}})
	}
	if g.distrust.why == nil {
		return nil
	}
	return errors.Join(g.distrust.why, g.openAll(ctx, s))
}

// misread sets distrust for fields of the gate with wrong values.
func (g *Gate) misread(s *job.Snapshot, fields []job.Misread) {
	why := fmt.Errorf("release %s of Slurm %w: %v", s.Release, ErrMisread, fields)
	g.distrust = distrust{why, s.Release, fields, g.Now().Add(distrustFor)}
}

// openAll opens every gate that a poll shows, and lets no new job wait for one.
func (g *Gate) openAll(ctx context.Context, s *job.Snapshot) error {
	var errs []error
	for i := range s.Gates {
		seen := &s.Gates[i]
		if seen.Open {
			continue
		}
		err := g.Slurm.OpenGate(ctx, seen.ID)
		seen.Open = err == nil
		errs = append(errs, err)
	}
	g.lease.Store(&lease{})
	return errors.Join(append(errs, g.shut())...)
}

// OpenFor opens the gate, for all jobs, since Slurm has refused to ungate some of them: no job may wait on. After the
// second time within an hour there is no gate for an hour.
func (g *Gate) OpenFor(ctx context.Context, s *job.Snapshot, refs []string) {
	g.asking.Lock()
	defer g.asking.Unlock()
	why := errors.New("jobs can't be let go from the gate one by one, since Slurm refuses it: the gate was opened for " +
		"all of them")
	now := g.Now()
	if now.Sub(g.openedFor) < distrustFor {
		g.distrust = distrust{why, s.Release, nil, now.Add(distrustFor)}
	}
	g.openedFor = now
	g.log().Error("gate", "err", errors.Join(why, g.openAll(ctx, s)), "jobs", strings.Join(refs[:min(len(refs), 10)], ","))
}

// leastStalled is how long a round may make no progress before the gate is no longer renewed (a lease, if that is
// longer): a dozen of Slurm's commands without an answer, 10 s each.
const leastStalled = 2 * time.Minute

// answerTime is how long a change may take before its command is killed.
const answerTime = 10 * time.Second

func (g *Gate) current() lease {
	l := g.lease.Load()
	if l == nil {
		return lease{}
	}
	return *l
}

// ID returns the gate's job number, "" while there is none.
func (g *Gate) ID() string { return g.current().gate }

// Left returns how long the gate stays closed without another renewal. Slurm counts by the wall clock, which goes on
// while this host is suspended and may be set; Left takes the lesser time by it and by the process's monotonic clock.
func (g *Gate) Left() time.Duration {
	l := g.current()
	if l.gate == "" {
		return 0
	}
	now := g.Now()
	return min(l.expires.Sub(now), l.expires.Round(0).Sub(now))
}

// Holds reports whether a change sent now reaches Slurm before the gate can open.
func (g *Gate) Holds() bool { return g.Left() > min(answerTime, g.Lease/2) }

// Progress notes that the round makes progress.
func (g *Gate) Progress() { g.progress.Store(g.Now().UnixNano()) }

// clockSlack is the largest difference expected between this host's clock and slurmctld's.
const clockSlack = 2 * time.Second

// Standby returns the name of another daemon that owns a closed gate, "" = there is none. It writes that gate to the
// gate file for a slurmctld on this host. Tend takes over a gate that its owner hasn't renewed in time. If two daemons
// made a gate at the same time the one with the older gate stays.
func (g *Gate) Standby(ctx context.Context, s *job.Snapshot) (owner string, err error) {
	g.asking.Lock()
	defer g.asking.Unlock()
	var other job.GateState
	for _, seen := range s.Gates {
		if !seen.Open && seen.Owner != "" && seen.Owner != g.Name && s.At.Sub(seen.Begin) < clockSlack &&
			(other.ID == "" || older(seen.ID, other.ID)) {
			other = seen
		}
	}
	mine := g.ID()
	// A gate whose lease has ended since has opened and holds no job.
	holds := g.current().submitted.After(s.At) ||
		slices.ContainsFunc(s.Gates, func(seen job.GateState) bool { return seen.ID == mine && !seen.Open })
	if other.ID == "" || mine != "" && holds && older(mine, other.ID) {
		return "", nil
	}
	if mine != "" && mine != other.ID {
		err = g.Slurm.OpenGate(ctx, mine)
	}
	g.lease.Store(&lease{})
	g.note(s)
	g.other = lease{gate: other.ID, expires: other.Begin}
	return other.Owner, errors.Join(err, g.publish(g.other))
}

// older reports whether a job was submitted before another one.
func older(id, other string) bool {
	return len(id) < len(other) || len(id) == len(other) && id < other
}

// Tend makes sure that there is a gate, that it can end by itself and that its lease is fresh: it takes over the one
// that a poll found (after a restart), renews it when a third of the lease has passed, and creates a new one when it is
// lost. A gate that an operator holds is released: it could not open. After an error newly submitted jobs get no gate:
// the file isn't renewed, and is removed where there is no gate at all.
func (g *Gate) Tend(ctx context.Context, s *job.Snapshot) error {
	g.Progress()
	g.asking.Lock()
	defer g.asking.Unlock()
	g.note(s)
	lost, unseen, claim := g.find(s)
	if claim != "" {
		if err := g.Slurm.ClaimGate(ctx, claim); err != nil && !errors.Is(err, job.ErrNoJob) {
			g.lease.Store(&lease{})
			return fmt.Errorf("take over gate %s: %w", claim, err)
		}
		g.log().Info("the gate is taken over: its daemon has not renewed it", "gate", claim)
	}
	if lost != "" { // Slurm may still have it
		if unseen && g.Slurm.RenewGate(ctx, lost, g.Lease) == nil {
			g.unseen++ // Slurm has the job, but the poll doesn't show it
		}
		if err := g.Slurm.OpenGate(ctx, lost); err != nil {
			return fmt.Errorf("gate %s, which the poll doesn't show: %w", lost, err)
		}
	}
	if err := g.prove(ctx, s); err != nil {
		return err
	}
	due := g.ID() == "" || !g.Now().Before(g.mendAt)
	if due {
		g.checkPartition(ctx)
	}
	partitions := g.partitions(s)
	mended := g.mend(ctx, s, partitions, due)
	var err error
	switch {
	case g.ID() == "" && g.Now().Before(g.createAt):
		err = g.refused
	case g.ID() == "":
		err = g.create(ctx, s, partitions)
	case g.Left() < g.Lease*2/3:
		err = g.renew(ctx)
		if errors.Is(err, job.ErrNoJob) {
			err = g.create(ctx, s, partitions)
		}
	}
	if g.ID() == "" {
		return errors.Join(mended, err, g.shut())
	}
	if err == nil {
		err = g.publish(g.current())
	}
	return errors.Join(mended, err)
}

// Idle writes the gate file of a bridge that changes nothing: it tells how GPUs are shared, and names no gate.
func (g *Gate) Idle(s *job.Snapshot) error {
	g.asking.Lock()
	defer g.asking.Unlock()
	g.note(s)
	return g.shut()
}

// note prepares the gate file's lines about a poll.
func (g *Gate) note(s *job.Snapshot) {
	// Slurm gives defaults per GPU to jobs of whole GPUs alone.
	g.polled = byPartition("size", s.OneNode, func(cpus int) uint64 { return uint64(cpus) }) +
		byPartition("cpus", s.PerGPU, func(d job.PerGPU) uint64 { return d.CPUs }) +
		byPartition("mem", s.PerGPU, func(d job.PerGPU) uint64 { return d.MemMiB }) + lines("model", s.Models()...)
	if s.MistakesGPUs {
		g.polled += lines("shares", g.SharersOnly...) + lines("type", s.Types()...)
	}
	g.polled += g.adopted
	i := slices.IndexFunc(s.Nodes, func(n job.Node) bool { return n.Sharing != "" })
	if i >= 0 {
		g.Sharing = s.Nodes[i].Sharing
	}
}

// Renew renews the lease after a third of it, unless the rounds make no progress or one of them is about to renew it.
func (g *Gate) Renew(ctx context.Context) error {
	if !g.asking.TryLock() {
		return nil
	}
	defer g.asking.Unlock()
	if g.ID() == "" || g.Left() <= 0 || g.Left() >= g.Lease*2/3 {
		return nil // a gate whose lease is over may be another daemon's by now: the next round sees it
	}
	idle := g.Now().Sub(time.Unix(0, g.progress.Load()))
	if idle > max(leastStalled, g.Lease) {
		return fmt.Errorf("gate %s is not renewed: the round has made no progress for %v; jobs that wait run alone after %v",
			g.ID(), idle.Round(time.Second), g.Left().Round(time.Second))
	}
	err := g.renew(ctx)
	if errors.Is(err, job.ErrNoJob) {
		return g.shut() // the next round makes another
	}
	if err != nil {
		return err
	}
	return g.publish(g.current())
}

// Run renews the lease alongside the rounds until ctx ends.
func (g *Gate) Run(ctx context.Context) {
	tick := time.NewTicker(max(g.Lease/12, time.Second))
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := g.Renew(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			g.log().Error("gate", "err", err)
		}
		failing = err != nil
	}
}

func (g *Gate) log() *slog.Logger { return cmp.Or(g.Log, slog.New(slog.DiscardHandler)) }

// find drops a gate that a poll shows to be lost (cancelled, opened, or its lease ended) and
// takes over the newest one that it shows. It returns the dropped one if the poll doesn't show it
// at all, whether no poll ever has, and one that was another daemon's.
func (g *Gate) find(s *job.Snapshot) (lost string, unseen bool, claim string) {
	l := g.current()
	live := false
	var newest job.GateState
	for _, seen := range s.Gates {
		if seen.Open {
			continue
		}
		live = live || seen.ID == l.gate
		if older(newest.ID, seen.ID) {
			newest = seen
		}
	}
	l.seen = l.seen || live
	if l.gate != "" && !live && !l.submitted.After(s.At) {
		unseen = !l.seen
		if !slices.ContainsFunc(s.Gates, func(seen job.GateState) bool { return seen.ID == l.gate }) {
			lost = l.gate
		}
		l = lease{}
	}
	if l.gate == "" && newest.ID != "" {
		l = lease{gate: newest.ID, seen: true} // to be renewed at once
		if newest.Owner != g.Name {
			claim = newest.ID
		}
	}
	g.lease.Store(&l)
	return lost, unseen, claim
}

// checkPartition checks whether the gate's own partition is up: in one that is down, the gate could not end.
func (g *Gate) checkPartition(ctx context.Context) {
	g.mendAt = g.Now().Add(g.Lease / 3)
	if g.Partition == "" {
		return
	}
	up, err := g.Slurm.PartitionUp(ctx, g.Partition)
	if err != nil || up != g.closed {
		return
	}
	g.closed = !up
	if g.closed {
		g.log().Warn("gate_partition is not there, not up or OverSubscribe=EXCLUSIVE: until that changes, the gate is in "+
			"each partition with a node that shares GPUs, where all users see it", "partition", g.Partition)
	}
}

// partitions are the partitions that the gate is to be in, sorted by name; nil = not known.
func (g *Gate) partitions(s *job.Snapshot) []string {
	if g.Partition != "" && !g.closed {
		return []string{g.Partition}
	}
	return sharedPartitions(s)
}

// sharedPartitions lists the partitions with a node that has shares, sorted by name.
func sharedPartitions(s *job.Snapshot) []string {
	var out []string
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if n.Units > 0 {
			out = append(out, n.Partitions...)
		}
	}
	out = slices.DeleteFunc(out, func(p string) bool { return s.WholeNodes[p] }) // there no job gets shares
	slices.Sort(out)
	return slices.Compact(out)
}

// mend corrects the partitions and priority of the gates that a poll showed, every third of a lease, and releases held
// gates at once. A held gate that can't be released is cancelled.
func (g *Gate) mend(ctx context.Context, s *job.Snapshot, partitions []string, due bool) error {
	var errs []error
	for _, seen := range s.Gates {
		ours := seen.ID == g.ID()
		held := seen.Priority == 0
		if ours && isMended(seen, partitions) {
			g.instead = ""
		}
		if seen.Open || !held && (!ours || !due || isMended(seen, partitions)) {
			continue
		}
		if held {
			g.log().Warn("the gate is held and could not open by itself: it is released", "gate", seen.ID)
		}
		err := g.Slurm.MendGate(ctx, seen, partitions)
		switch {
		case err == nil, errors.Is(err, job.ErrNoJob):
			continue
		case held && errors.Is(err, job.ErrRefused):
			err = errors.Join(err, g.Slurm.OpenGate(ctx, seen.ID))
			if ours {
				g.lease.Store(&lease{})
			}
		}
		errs = append(errs, fmt.Errorf("gate %s in partitions %s: %w", seen.ID, strings.Join(partitions, ","), err))
	}
	return errors.Join(errs...)
}

// isMended reports whether a gate is first in all the given partitions.
func isMended(seen job.GateState, partitions []string) bool {
	is := slices.Sorted(slices.Values(seen.Partitions))
	return seen.Priority == job.GatePriority && (len(partitions) == 0 || slices.Equal(is, partitions))
}

// refusedFor is how long the bridge waits after Slurm refused the gate in every partition: a try costs dozens of
// requests.
const refusedFor = 30 * time.Second

// mostPartitions bounds the partitions that are tried one by one after Slurm refused the gate in all of them together.
const mostPartitions = 8

// create submits a gate to the given partitions. If Slurm refuses it there (an account without access, a partition that
// is gone), it tries the partitions with shares, the default partition, and each partition alone.
func (g *Gate) create(ctx context.Context, s *job.Snapshot, partitions []string) error {
	shared := sharedPartitions(s)
	tries := [][]string{partitions, shared, nil}
	for _, p := range shared[:min(len(shared), mostPartitions)] {
		tries = append(tries, []string{p})
	}
	g.instead = ""
	var refused error
	for i, in := range tries {
		if slices.ContainsFunc(tries[:i], func(earlier []string) bool { return slices.Equal(earlier, in) }) {
			continue
		}
		id, account, err := g.Slurm.CreateGate(ctx, g.Lease, in)
		if err == nil {
			if account != "" {
				g.log().Warn("Slurm refuses the gate in the default account of the bridge's user: it is in another", "gate", id,
					"account", account)
			}
			g.lease.Store(&lease{gate: id, account: account, expires: g.Now().Add(g.Lease), submitted: g.Now()})
			if refused != nil {
				g.instead = fmt.Sprintf("the gate is in partition %s instead: %v", cmp.Or(strings.Join(in, ","), "(default)"),
					refused)
			}
			return nil
		}
		refused = cmp.Or(refused, fmt.Errorf("create gate: %w", err))
		if !errors.Is(err, job.ErrRefused) {
			return refused
		}
	}
	g.refused = refused
	g.createAt = g.Now().Add(refusedFor)
	return refused
}

// renew starts a new lease. The gate is lost if Slurm doesn't know it any more.
func (g *Gate) renew(ctx context.Context) error {
	l := g.current()
	asked := g.Now()
	err := g.Slurm.RenewGate(ctx, l.gate, g.Lease)
	if errors.Is(err, job.ErrNoJob) {
		g.lease.Store(&lease{})
	}
	if err != nil {
		return fmt.Errorf("renew gate %s: %w", l.gate, err)
	}
	l.expires = asked.Add(g.Lease)
	g.lease.Store(&l)
	return nil
}

// ByHand names users and partitions. job_submit.lua leaves their requests for a part of a GPU's shares (mps:30) as they
// are and turns other such requests into gpu:shared. The bridge, which makes such requests, is always allowed.
type ByHand struct {
	Users []uint32 // user IDs
	Only  []string // the partitions that are looked after; none = all
	Leave []string // the partitions that are not
}

// lines formats one line of the gate file per value.
func lines[V any](key string, values ...V) string {
	out := ""
	for _, v := range values {
		out += fmt.Sprintf("%s=%v\n", key, v)
	}
	return out
}

// byPartition formats one line of the gate file per partition with a number above 0.
func byPartition[V any](key string, all map[string]V, number func(V) uint64) string {
	out := ""
	for _, name := range slices.Sorted(maps.Keys(all)) {
		n := number(all[name])
		if n > 0 && !strings.ContainsAny(name, "\n:=") {
			out += lines(key, fmt.Sprintf("%s:%d", name, n))
		}
	}
	return out
}

// publish names a gate to the job_submit script. The expiry in the file is a little before the lease's, so that no job
// is bound to a gate that is opening.
func (g *Gate) publish(l lease) error {
	return writeGateFile(g.File, lines("job", l.gate)+lines("expires", l.expires.Add(-2*time.Second).Unix())+g.ungated()+
		lines("uid", os.Geteuid())+lines("user", g.ByHand.Users...)+lines("only", g.ByHand.Only...)+
		lines("leave", g.ByHand.Leave...)+g.polled)
}

// ungated returns the lines of the gate file that hold without a gate, too: the kind of shares, by which a job that
// comes now gets a whole GPU's and waits for no gate, and the gate's partition.
func (g *Gate) ungated() string {
	text := lines("gres", g.Sharing) + lines("units", job.Units)
	if g.Partition != "" {
		text += lines("partition", g.Partition)
	}
	return text
}

// shut reduces the gate file to the lines that hold without a gate.
func (g *Gate) shut() error {
	if g.Sharing == "" {
		return CloseGateFile(g.File) // no poll has shown it
	}
	return writeGateFile(g.File, g.ungated())
}

// holdsUngated matches the lines of Gate.ungated.
var holdsUngated = regexp.MustCompile(`(?m)^(gres=(mps|shard)|units=\d+|partition=\S+)\n`)

// CloseGateFile reduces a gate file to the lines that hold without a gate. A file that doesn't name the kind of shares
// is removed.
func CloseGateFile(path string) error {
	was, _ := os.ReadFile(filepath.Clean(path)) // a file that can't be read counts as empty
	kept := string(bytes.Join(holdsUngated.FindAll(was, -1), nil))
	if !strings.HasPrefix(kept, "gres=") {
		kept = ""
	}
	return writeGateFile(path, kept)
}

// writeGateFile writes a gate file, or removes it if there are no lines; path "" = none is kept.
func writeGateFile(path, text string) (err error) {
	was, unread := os.ReadFile(filepath.Clean(path))
	switch {
	case path == "", unread == nil && text != "" && string(was) == text:
		return nil
	case text != "":
		err = renameio.WriteFile(path, []byte(text), 0o644, renameio.WithTempDir(filepath.Dir(path)))
	default:
		err = os.Remove(filepath.Clean(path))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("write gate file: %w", err)
	}
	return nil
}
