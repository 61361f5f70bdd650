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
	// Name is this daemon's, which the gate carries; see Standby.
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
	// Adopt returns the lines of the site's rules for unchanged jobs of whole GPUs; nil = there are none.
	Adopt func(s *job.Snapshot) string
	Now   func() time.Time
	Log   *slog.Logger // nil = none

	// distrust is why no gate is made on a release that says untrue things of it, until it is
	// tried again; proved is the release that said what is so. The rounds alone read them.
	distrust distrust
	proved   string
	unseen   int // gates in a row that Slurm had and that no poll has shown
	// mendAt is when the gate is next brought to where it is to be; closed: not to Partition, which isn't up.
	mendAt time.Time
	closed bool
	// instead says where the gate is because Slurm refused it where it was to be, "" = it didn't.
	instead string
	// refused is why Slurm took no gate, and createAt when it is asked again.
	refused  error
	createAt time.Time
	// openedFor is when the gate was last opened for jobs that Slurm didn't let go.
	openedFor time.Time

	polled string // what the gate file says of the last poll

	asking   sync.Mutex            // held during a command about the gate: one at a time
	lease    atomic.Pointer[lease] // the holder of asking replaces it; reading needs no lock
	other    lease                 // another daemon's, while this one is standby
	progress atomic.Int64          // when a round last came on, Unix ns
}

// lease is a gate and until when it is closed.
type lease struct {
	gate    string // "" = there is none
	account string // where Slurm refused it in the default one, "" = it didn't
	expires time.Time
	// submitted is when the gate was created: an earlier poll can't show it.
	submitted time.Time
	seen      bool // by a poll
}

// ErrMisread says that Slurm says of the gate what isn't so: what it says of other jobs can't
// be trusted either, and none is touched.
var ErrMisread = errors.New("is not understood, and no job is touched")

// distrust is why no gate is made, on this release of Slurm's, for some time; nil = one is.
type distrust struct {
	why     error
	release string
	fields  []job.Misread // that aren't understood
	until   time.Time
}

// How long a Slurm that isn't understood, or doesn't let jobs go, is left alone, and how many gates in a row may be
// there without a poll that shows them.
const (
	distrustFor = time.Hour
	mostUnseen  = 3
)

// Proved reports whether a poll has shown the gate as it is on this release of Slurm's.
func (g *Gate) Proved(release string) bool { return g.proved == release && g.distrust.fields == nil }

// prove checks whether the poll shows the gate as it was submitted. If it doesn't, opening the gate
// ungates every waiting job: no job is changed if its fields may be misread.
func (g *Gate) prove(ctx context.Context, s *job.Snapshot) error {
	if d := &g.distrust; d.why != nil && (d.release != s.Release || !g.Now().Before(d.until)) {
		*d, g.unseen = distrust{}, 0
	}
	for i := range s.Gates {
		seen := &s.Gates[i]
		switch {
		case seen.Open || seen.ID != g.ID():
		case len(seen.Misread) > 0:
			g.misread(s, seen.Misread)
		default:
			g.proved, g.unseen = s.Release, 0
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

// misread notes that Slurm says of the gate what isn't so.
func (g *Gate) misread(s *job.Snapshot, fields []job.Misread) {
	why := fmt.Errorf("release %s of Slurm %w: %v", s.Release, ErrMisread, fields)
	g.distrust = distrust{why, s.Release, fields, g.Now().Add(distrustFor)}
}

// openAll opens every gate that a poll shows, and lets no new job wait for one.
func (g *Gate) openAll(ctx context.Context, s *job.Snapshot) error {
	var errs []error
	for i := range s.Gates {
		if seen := &s.Gates[i]; !seen.Open {
			err := g.Slurm.OpenGate(ctx, seen.ID)
			seen.Open, errs = err == nil, append(errs, err)
		}
	}
	g.lease.Store(&lease{})
	return errors.Join(append(errs, g.shut())...)
}

// OpenFor opens the gate for jobs that Slurm doesn't let go from it one by one, and with them for all others: no job is
// to wait for longer. Where that happens twice within an hour there is no gate for the next one.
func (g *Gate) OpenFor(ctx context.Context, s *job.Snapshot, refs []string) {
	g.asking.Lock()
	defer g.asking.Unlock()
	why := errors.New("jobs can't be let go from the gate one by one, since Slurm refuses it: the gate was opened for " +
		"all of them")
	if now := g.Now(); now.Sub(g.openedFor) < distrustFor {
		g.distrust = distrust{why, s.Release, nil, now.Add(distrustFor)}
	}
	g.openedFor = g.Now()
	g.log().Error("gate", "err", errors.Join(why, g.openAll(ctx, s)), "jobs", strings.Join(refs[:min(len(refs), 10)], ","))
}

// leastStalled is the shortest time without progress of a round after which the gate is no longer
// renewed, or a lease if that is longer: a dozen of Slurm's commands without an answer (10 s each).
const leastStalled = 2 * time.Minute

// answerTime is how long a change may be under way: after that its command is ended.
const answerTime = 10 * time.Second

func (g *Gate) current() lease {
	if l := g.lease.Load(); l != nil {
		return *l
	}
	return lease{}
}

// ID is the gate's job, "" while there is none.
func (g *Gate) ID() string { return g.current().gate }

// Left is how long the gate stays closed without another renewal. Slurm counts by the wall clock, which goes on while
// this host is suspended and may be set; of it and this process's own clock the one counts by which less is left.
func (g *Gate) Left() time.Duration {
	l := g.current()
	if l.gate == "" {
		return 0
	}
	now := g.Now()
	return min(l.expires.Sub(now), l.expires.Round(0).Sub(now))
}

// Holds reports whether a change that is sent now comes to Slurm before the gate can open.
func (g *Gate) Holds() bool { return g.Left() > min(answerTime, g.Lease/2) }

// Progress notes that the round has come on.
func (g *Gate) Progress() { g.progress.Store(g.Now().UnixNano()) }

// clockSlack is by how much this host's clock and slurmctld's may differ.
const clockSlack = 2 * time.Second

// Standby returns the daemon that keeps a closed gate in this one's place, "" = there is none. It keeps the gate file
// up to date with that gate, for a slurmctld on this host. A gate that its owner hasn't renewed in time is no one's:
// Tend takes it over. Of two daemons that made a gate at the same time the one with the older gate stays.
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
	// One that has opened since, when its lease was over, holds no job any more.
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
	if lost != "" { // it may be there all the same
		if unseen && g.Slurm.RenewGate(ctx, lost, g.Lease) == nil {
			g.unseen++ // Slurm knows a job that the poll doesn't show; one that is gone is made anew
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
		if err = g.renew(ctx); errors.Is(err, job.ErrNoJob) {
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

// Idle keeps the gate file of a bridge that changes nothing: it says how GPUs are shared, and names no gate.
func (g *Gate) Idle(s *job.Snapshot) error {
	g.asking.Lock()
	defer g.asking.Unlock()
	g.note(s)
	return g.shut()
}

// note keeps what the gate file says of a poll.
func (g *Gate) note(s *job.Snapshot) {
	// Slurm gives defaults per GPU to jobs of whole GPUs alone.
	g.polled = byPartition("size", s.OneNode, func(cpus int) uint64 { return uint64(cpus) }) +
		byPartition("cpus", s.PerGPU, func(d job.PerGPU) uint64 { return d.CPUs }) +
		byPartition("mem", s.PerGPU, func(d job.PerGPU) uint64 { return d.MemMiB }) + lines("model", s.Models()...)
	if s.MistakesGPUs {
		g.polled += lines("shares", g.SharersOnly...) + lines("type", s.Types()...)
	}
	if g.Adopt != nil {
		g.polled += g.Adopt(s)
	}
	if i := slices.IndexFunc(s.Nodes, func(n job.Node) bool { return n.Sharing != "" }); i >= 0 {
		g.Sharing = s.Nodes[i].Sharing
	}
}

// Renew renews the lease where a third of it has passed, unless the rounds make no progress or one of them is about to.
func (g *Gate) Renew(ctx context.Context) error {
	if !g.asking.TryLock() {
		return nil
	}
	defer g.asking.Unlock()
	if g.ID() == "" || g.Left() <= 0 || g.Left() >= g.Lease*2/3 {
		return nil // a gate whose lease is over may be another daemon's by now: the next round sees it
	}
	if idle := g.Now().Sub(time.Unix(0, g.progress.Load())); idle > max(leastStalled, g.Lease) {
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

// Run renews the lease in parallel to the rounds until ctx ends.
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
	live, newest, owner := false, "", ""
	for _, seen := range s.Gates {
		if seen.Open {
			continue
		}
		live = live || seen.ID == l.gate
		if older(newest, seen.ID) {
			newest, owner = seen.ID, seen.Owner
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
	if l.gate == "" && newest != "" {
		l = lease{gate: newest, seen: true} // to be renewed at once
		if owner != g.Name {
			claim = newest
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
	if g.closed = !up; g.closed {
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

// sharedPartitions are the partitions that have a node with shares, sorted by name.
func sharedPartitions(s *job.Snapshot) []string {
	var out []string
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Units > 0 {
			out = append(out, n.Partitions...)
		}
	}
	out = slices.DeleteFunc(out, func(p string) bool { return s.WholeNodes[p] }) // where no job has shares
	slices.Sort(out)
	return slices.Compact(out)
}

// mend brings the gates that a poll showed back to what they should be where that is due, each
// third of a lease, and held ones at once. A held gate that can't be released is cancelled.
func (g *Gate) mend(ctx context.Context, s *job.Snapshot, partitions []string, due bool) error {
	var errs []error
	for _, seen := range s.Gates {
		ours, held := seen.ID == g.ID(), seen.Priority == 0
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

// refusedFor is for how long a gate that Slurm takes nowhere isn't tried: each try costs dozens of requests.
const refusedFor = 30 * time.Second

// mostPartitions bounds the partitions that are tried one by one for a gate that Slurm refuses in all of them together.
const mostPartitions = 8

// create submits a gate to the given partitions. Where Slurm refuses it there (an account without access, a partition
// that has gone), it is tried with what the cluster has: the partitions with shares, the default one, each alone.
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
	g.refused, g.createAt = refused, g.Now().Add(refusedFor)
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

// lines are the lines of the gate file that name values.
func lines[V any](key string, values ...V) string {
	out := ""
	for _, v := range values {
		out += fmt.Sprintf("%s=%v\n", key, v)
	}
	return out
}

// byPartition are the lines of the gate file that give a number above 0 for a partition.
func byPartition[V any](key string, all map[string]V, number func(V) uint64) string {
	out := ""
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := number(all[name]); n > 0 && !strings.ContainsAny(name, "\n:=") {
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

// ungated is what the gate file says without a gate, too: what shares of a GPU are called, so that a job that comes now
// gets those of a whole one and waits for no gate, and the gate's partition.
func (g *Gate) ungated() string {
	text := lines("gres", g.Sharing) + lines("units", job.Units)
	if g.Partition != "" {
		text += lines("partition", g.Partition)
	}
	return text
}

// shut leaves in the gate file what holds without a gate.
func (g *Gate) shut() error {
	if g.Sharing == "" {
		return CloseGateFile(g.File) // no poll has shown it
	}
	return writeGateFile(g.File, g.ungated())
}

// holdsUngated are the lines that a gate file keeps without a gate: those of Gate.ungated.
var holdsUngated = regexp.MustCompile(`(?m)^(gres=(mps|shard)|units=\d+|partition=\S+)\n`)

// CloseGateFile leaves in a gate file only what holds without a gate, as the file itself says it. A file that doesn't
// name shares is removed.
func CloseGateFile(path string) error {
	was, _ := os.ReadFile(filepath.Clean(path)) // what can't be read says nothing
	kept := string(bytes.Join(holdsUngated.FindAll(was, -1), nil))
	if !strings.HasPrefix(kept, "gres=") {
		kept = ""
	}
	return writeGateFile(path, kept)
}

// writeGateFile makes a gate file say something, or removes it where there is nothing to say; "" = no file is kept.
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
