package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// tormentor does harm to the machine, one thing after the other, and mends it again.
type tormentor struct {
	c    *campaign
	rnd  *rand.Rand
	wire *wire

	mu   sync.Mutex
	busy map[string]bool // what is broken
	mend sync.WaitGroup
}

// torment is one kind of harm. what is the thing that it breaks: one at a time.
type torment struct {
	kind   string
	weight int
	// do breaks something for some seconds and returns when it works again. It returns
	// the node that it was, and errNothing where there was nothing to break.
	do func(ctx context.Context, t *tormentor, s float64) (node string, err error)
	// least and most seconds.
	least, most float64
	// slurms: it breaks something of Slurm's.
	slurms bool
	// plain: plain Slurm's jobs on that node, or at their end, would have felt it, and no look
	// shows it.
	plain bool
}

var errNothing = errors.New("nothing to break")

const (
	bridgeDaemon = "slurmbridge"
	agentDaemon  = "gpuprof"
)

var torments = []torment{
	{"bridge killed", 6, killBridge, 1, 8, false, false},
	{"bridge killed for longer than the lease", 1, killBridge, 40, 70, false, false},
	{"bridge stopped", 4, stopBridge, 2, 12, false, false},
	{"bridge stopped for longer than the lease", 1, stopBridge, 35, 60, false, false},
	{"agent killed", 8, killAgent, 1, 20, false, false},
	{"agent stopped", 4, stopAgent, 2, 20, false, false},
	{"agents cut off", 4, cutOff, 5, 40, false, false},
	{"hook killed", 12, killProcess("slurmbridge-hook"), 0, 0, false, false},
	{"MPS control daemon killed", 2, killProcess("nvidia-cuda-mps-control"), 0, 0, false, false},
	{"MPS server killed", 2, killProcess("nvidia-cuda-mps-server"), 0, 0, false, false},
	{"slurmctld killed", 2, killController, 1, 5, true, true},
	{"slurmctld restarted", 2, restartController, 1, 5, true, true},
	{"slurmctld stopped", 4, stopController, 1, 8, true, true},
	{"slurmd killed", 4, killNode, 1, 8, true, true},
	{"partition down", 4, partitionDown, 5, 30, true, false},
	{"node drained", 4, drainNode, 5, 40, true, false},
	{"disk full", 4, fillDisk, 5, 40, false, false},
	{"gate cancelled", 2, cancelGate, 0, 0, false, false},
}

// run torments until the context ends, about once in everyS seconds, and mends all.
func (t *tormentor) run(ctx context.Context, everyS float64) {
	kinds := slices.DeleteFunc(slices.Clone(torments), func(k torment) bool { return t.c.o.plain && !k.slurms })
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	for wait(ctx, t.rnd.ExpFloat64()*everyS) {
		pick := t.rnd.IntN(sum)
		i := 0
		for ; pick >= kinds[i].weight; i++ {
			pick -= kinds[i].weight
		}
		k := &kinds[i]
		s := k.least + (k.most-k.least)*t.rnd.Float64()
		t.mend.Go(func() { t.one(ctx, k, s) })
	}
	t.mend.Wait()
}

func (t *tormentor) one(ctx context.Context, k *torment, s float64) {
	from := now()
	node, err := k.do(ctx, t, s)
	if errors.Is(err, errNothing) {
		return
	}
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "soak: %s: %v\n", k.kind, err)
	}
	t.c.mu.Lock()
	defer t.c.mu.Unlock()
	t.c.kinds[k.kind]++
	if k.plain && node == "" {
		t.c.outages = append(t.c.outages, outage{interval{from, now()}, -1, "", true})
	}
	t.c.faults = append(t.c.faults, fault{interval{from, now()}, k.kind, node, k.plain})
}

// take claims a thing to break; free gives it back. Nothing is broken twice at a time.
func (t *tormentor) take(what string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy[what] {
		return false
	}
	t.busy[what] = true
	return true
}

func (t *tormentor) free(what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.busy, what)
}

// during breaks a thing, waits and mends it in any case.
func (t *tormentor) during(ctx context.Context, what string, s float64, broken, mended func() error) error {
	if !t.take(what) {
		return errNothing
	}
	defer t.free(what)
	if err := broken(); err != nil {
		return err
	}
	wait(ctx, s)
	return mended()
}

func killBridge(ctx context.Context, t *tormentor, s float64) (string, error) {
	return "", t.during(ctx, bridgeDaemon, s, func() error { return t.c.s.Kill(bridgeDaemon) }, func() error { return t.c.s.Again(bridgeDaemon) })
}

func stopBridge(ctx context.Context, t *tormentor, s float64) (string, error) {
	return "", t.stop(ctx, bridgeDaemon, s)
}

// stop makes a daemon of ours stand still.
func (t *tormentor) stop(ctx context.Context, name string, s float64) error {
	signal := func(sig syscall.Signal) func() error {
		return func() error { return t.c.s.Daemon(name).Process.Signal(sig) }
	}
	return t.during(ctx, name, s, signal(syscall.SIGSTOP), signal(syscall.SIGCONT))
}

// node is a random one's number.
func (t *tormentor) node() int { return t.rnd.IntN(len(t.c.o.nodeGPUs)) }

func killAgent(ctx context.Context, t *tormentor, s float64) (string, error) {
	i := t.node()
	name := t.c.s.Agent(i)
	return slurmtest.NodeName(i), t.during(ctx, name, s, func() error { return t.c.s.Kill(name) }, func() error { return t.c.s.Again(name) })
}

func stopAgent(ctx context.Context, t *tormentor, s float64) (string, error) {
	i := t.node()
	return slurmtest.NodeName(i), t.stop(ctx, t.c.s.Agent(i), s)
}

func cutOff(ctx context.Context, t *tormentor, s float64) (string, error) {
	set := func(cut bool) func() error { return func() error { t.wire.set(cut); return nil } }
	return "", t.during(ctx, "wire", s, set(true), set(false))
}

// killProcess kills one process of a program that comes and goes.
func killProcess(program string) func(context.Context, *tormentor, float64) (string, error) {
	return func(_ context.Context, t *tormentor, _ float64) (string, error) {
		var pids []int
		// A hook is there for milliseconds: wait for one.
		for end := time.Now().Add(3 * time.Second); len(pids) == 0 && time.Now().Before(end); {
			var err error
			if pids, err = t.c.s.Processes(program); err != nil {
				return "", err
			}
		}
		if len(pids) == 0 {
			return "", errNothing
		}
		pid := pids[t.rnd.IntN(len(pids))]
		node := nodeOf(pid, len(t.c.o.nodeGPUs))
		if syscall.Kill(pid, syscall.SIGKILL) != nil {
			return "", errNothing
		}
		return node, nil
	}
}

const controller = "slurmctld"

// startController starts slurmctld until it is there.
func (t *tormentor) startController() error {
	var err error
	for range 5 {
		if err = t.c.s.StartController(context.Background()); err == nil {
			return nil
		}
		t.c.s.KillController()
	}
	return err
}

func killController(ctx context.Context, t *tormentor, s float64) (string, error) {
	return "", t.during(ctx, controller, s, func() error { t.c.s.KillController(); return nil }, t.startController)
}

func restartController(ctx context.Context, t *tormentor, s float64) (string, error) {
	return "", t.during(ctx, controller, s, func() error { t.c.s.StopController(); return nil }, t.startController)
}

func stopController(ctx context.Context, t *tormentor, s float64) (string, error) {
	var pids []int
	signal := func(sig syscall.Signal) error {
		for _, pid := range pids {
			if err := syscall.Kill(pid, sig); err != nil {
				return err
			}
		}
		return nil
	}
	return "", t.during(ctx, controller, s, func() (err error) {
		if pids, err = t.c.s.Processes(controller); err != nil {
			return err
		}
		return signal(syscall.SIGSTOP)
	}, func() error { return signal(syscall.SIGCONT) })
}

func killNode(ctx context.Context, t *tormentor, s float64) (string, error) {
	i := t.node()
	name := slurmtest.NodeName(i)
	return name, t.during(ctx, "slurmd "+name, s, func() error { t.c.s.KillNode(i); return nil }, func() error { return t.c.s.StartNode(i) })
}

// scontrol tries until slurmctld is there.
func (t *tormentor) scontrol(args ...string) error {
	var err error
	for range 60 {
		if _, err = t.c.s.Run(context.Background(), "scontrol", args...); err == nil {
			return nil
		}
		time.Sleep(time.Second)
	}
	return err
}

func partitionDown(ctx context.Context, t *tormentor, s float64) (string, error) {
	p := partitions[t.rnd.IntN(len(partitions))]
	set := func(state string) func() error {
		return func() error { return t.scontrol("update", "PartitionName="+p, "State="+state) }
	}
	return "", t.during(ctx, p, s, set("DOWN"), set("UP"))
}

func drainNode(ctx context.Context, t *tormentor, s float64) (string, error) {
	name := slurmtest.NodeName(t.node())
	return name, t.during(ctx, "state of "+name, s,
		func() error { return t.scontrol("update", "NodeName="+name, "State=DRAIN", "Reason=soak") },
		func() error { return t.scontrol("update", "NodeName="+name, "State=RESUME") })
}

func fillDisk(ctx context.Context, t *tormentor, s float64) (string, error) {
	return "", t.during(ctx, "disk", s, t.c.disk.Fill, t.c.disk.Empty)
}

// cancelGate is the operator's off switch.
func cancelGate(ctx context.Context, t *tormentor, _ float64) (string, error) {
	text, err := os.ReadFile(t.c.s.GateFile)
	if err != nil {
		return "", errNothing
	}
	var id int
	if _, err := fmt.Sscanf(string(text), "job=%d", &id); err != nil {
		return "", errNothing
	}
	_, err = t.c.s.Run(ctx, "scancel", fmt.Sprint(id))
	return "", err
}

// pulse notes since when the bridge doesn't answer.
func (c *campaign) pulse(ctx context.Context) {
	client := &http.Client{Timeout: time.Second}
	for wait(ctx, 1) {
		resp, err := client.Get(c.s.URL + "/-/healthy")
		c.mu.Lock()
		switch {
		case err == nil:
			_ = resp.Body.Close()
			c.dead = 0
		case c.dead == 0:
			c.dead = now()
		}
		c.mu.Unlock()
	}
}
