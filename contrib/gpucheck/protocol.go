package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec" //nolint:depguard // programs are looked for
	"path/filepath"
	"strings"
	"time"
)

// situation is something that happens to jobs that share a GPU, on a daemon of its own. What it returns says why it
// shows no more; that a client fails is a fact and no error.
type situation struct {
	name string
	play func(ctx context.Context, s *stage) error
}

// other is the second user.
const other = 65534

// situations are played in this order: what the rest needs first, then what jobs meet most often.
var situations = []situation{
	{"machine", theMachine},
	{"states of a server", serverStates},
	{"a client by UUID and by number", clientsByName},
	{"process samples of a 90/10 pair", samplesOfAPair},
	{"a client faults", clientFaults},
	{"a busy client is killed", func(ctx context.Context, s *stage) error { return s.lose(ctx, false) }},
	{"a busy client is terminated, then killed", func(ctx context.Context, s *stage) error { return s.lose(ctx, true) }},
	{"a memory limit and a thread percentage", limits},
	{"a private /dev/shm", privateShm},
	{"a dead socket", deadSocket},
	{"the server is killed", serverKilled},
	{"two users", func(ctx context.Context, s *stage) error { return s.users(ctx) }},
	{"two users of a -multiuser-server", func(ctx context.Context, s *stage) error {
		return s.users(ctx, "-multiuser-server")
	}},
}

// mostOfSituation is the longest that a situation of the protocol may take.
const mostOfSituation = 25 * time.Second

// play plays situations for so long: each takes its time or, where they are evenly long, an equal part of what is left.
// Each has a stage of its own, and leaves nothing behind.
func (o *options) play(ctx context.Context, c *card, r *results, all []situation, lasts time.Duration, evenly bool) {
	end := time.Now().Add(lasts)
	for i, sit := range all {
		if ctx.Err() != nil {
			return
		}
		begin, most := time.Now(), mostOfSituation
		if evenly {
			most = time.Until(end) / time.Duration(len(all)-i)
		}
		folder, err := os.MkdirTemp("", "gc")
		s := &stage{
			card: c, control: o.control, client: []string{"/proc/self/exe", "client"}, folder: folder, results: r,
			name: sit.name, begin: begin, facts: map[string]any{}, servers: map[int]bool{}, pace: o.pace,
		}
		if most = min(most, time.Until(end)); most <= 0 {
			err = errors.Join(err, errors.New("no time was left for it"))
		}
		if err == nil {
			_ = os.Chmod(folder, 0o755) //nolint:gosec // clients of another user use it for a moment
			mine, stop := context.WithTimeout(ctx, most)
			err = sit.play(mine, s)
			stop()
		}
		s.end()
		s.facts["events"] = s.events
		r.add(sit.name, begin, s.facts, err)
	}
}

// theMachine is what there is: programs, the driver, what NVML gives.
func theMachine(ctx context.Context, s *stage) error {
	s.facts["control"] = s.control
	s.facts["server"], _ = exec.LookPath("nvidia-cuda-mps-server")
	s.facts["uid"], s.facts["simulated"] = os.Getuid(), simulated()
	s.facts["nvml"], s.facts["idle_mib"] = &s.card.Device, s.card.idle.MemMiB
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	s.facts["kernel"] = strings.TrimSpace(string(kernel))
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, " /dev/shm ") {
			s.note("%s", strings.TrimSpace(line))
		}
	}
	devices, _ := filepath.Glob("/dev/nvidia*")
	for _, d := range devices {
		if info, err := os.Stat(d); err == nil {
			s.note("%s %s", info.Mode(), d)
		}
	}
	if smi, err := exec.LookPath("nvidia-smi"); err == nil {
		const figures = "index,uuid,name,driver_version,compute_mode,persistence_mode,mig.mode.current"
		said, err := output(ctx, "", environ(), smi, "--query-gpu="+figures, "--format=csv")
		s.note("nvidia-smi: %s %s", said, errText(err))
	}
	if s.control != "" {
		said, err := output(ctx, "help\n", append(environ(), "CUDA_MPS_PIPE_DIRECTORY="+s.pipe()), s.control)
		s.note("help without a daemon: %.400q %s", said, errText(err))
	}
	// A context of its own, with no daemon: what CUDA is here.
	c := s.connect(ctx, "without MPS", clientOptions{})
	s.facts["cuda"] = c.computes()
	if !c.computes() {
		return fmt.Errorf("CUDA doesn't compute: %s", c.first.failure())
	}
	return nil
}

// serverStates: what the daemon says of a server from its start to its end, and what it leaves in its folder.
func serverStates(ctx context.Context, s *stage) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.serve(ctx, os.Getuid())
	s.files("with a server")
	s.connect(ctx, "a", clientOptions{})
	server := s.server(ctx)
	for _, command := range []string{
		"get_server_list", fmt.Sprintf("get_server_status %d", server), fmt.Sprintf("get_client_list %d", server), "ps",
		"get_default_active_thread_percentage", fmt.Sprintf("get_device_client_list %d", server), "nonsense",
	} {
		said, err := s.ask(ctx, command)
		s.note("%s: %.400q %s", command, said, errText(err))
	}
	s.lists()
	s.dismiss(s.clients...)
	said, err := s.ask(ctx, "quit")
	s.note("quit: %.200q %s", said, errText(err))
	until := time.Now().Add(s.long(5 * time.Second))
	for len(s.programs("nvidia-cuda-mps")) > 0 && time.Now().Before(until) {
		time.Sleep(10 * time.Millisecond)
	}
	s.note("processes left: %v", s.programs("nvidia-cuda-mps"))
	s.files("after quit")
	return nil
}

// files notes what is in the pipe directory.
func (s *stage) files(when string) {
	entries, _ := os.ReadDir(s.pipe())
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			s.note("%s: %s %d %s", when, info.Mode(), info.Size(), e.Name())
		}
	}
}

// lists notes NVML's processes, and which of them it takes for clients.
func (s *stage) lists() {
	list, err := s.card.Processes()
	body, _ := json.Marshal(list)
	s.note("NVML's processes: %s %s", body, errText(err))
}

// clientsByName: which names of the card a client of a daemon for that card may use.
func clientsByName(ctx context.Context, s *stage) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.serve(ctx, os.Getuid())
	for _, visible := range []string{s.card.UUID, "0", "none"} {
		c := s.connect(ctx, "CUDA_VISIBLE_DEVICES="+visible, clientOptions{visible: visible})
		if s.facts["visible"] == nil && c.computes() {
			s.facts["visible"], s.card.visible = visible, visible
		}
		said, _ := s.ask(ctx, fmt.Sprintf("get_client_list %d", s.server(ctx)))
		s.note("clients of the server: %v", strings.Fields(said))
	}
	s.lists()
	if s.facts["visible"] == nil {
		return fmt.Errorf("no client computes")
	}
	return nil
}

// pair starts a daemon and two clients.
func (s *stage) pair(ctx context.Context) (a, b *client, err error) {
	if err := s.start(ctx); err != nil {
		return nil, nil, err
	}
	s.serve(ctx, os.Getuid())
	a, b = s.connect(ctx, "a", clientOptions{}), s.connect(ctx, "b", clientOptions{})
	for _, c := range []*client{a, b} {
		if !c.computes() {
			return a, b, fmt.Errorf("client %s doesn't compute: %s", c.name, c.first.failure())
		}
	}
	return a, b, nil
}

// samplesOfAPair: who gets the driver's samples of processes, for a pair that computes nine tenths and a tenth of the
// time, and for one of them alone, next to what performance monitoring sees.
func samplesOfAPair(ctx context.Context, s *stage) error {
	a, b, err := s.pair(ctx)
	if err != nil {
		return err
	}
	who := func(pid int) string {
		switch pid {
		case a.pid():
			return "a"
		case b.pid():
			return "b"
		case s.server(ctx):
			return "server"
		}
		return fmt.Sprint(pid)
	}
	s.facts["pids"] = map[string]int{"a": a.pid(), "b": b.pid(), "server": s.server(ctx)}
	look := func(name string, lasts time.Duration) {
		rows := s.look(ctx, lasts, who)
		s.facts[name], s.facts[name+", mean"] = rows, meanOf(rows)
	}
	s.tell(a, "run 0.9")
	s.tell(b, "run 0.1")
	s.lists()
	look("90/10", 6*time.Second)
	s.tell(b, "stop")
	s.facts["b"] = s.answer(ctx, b, 2*time.Second)
	look("90/0", 3*time.Second)
	s.tell(a, "stop")
	s.facts["a"] = s.answer(ctx, a, 2*time.Second)
	return nil
}

// busy has both clients of a pair compute and check their results.
func (s *stage) busy(ctx context.Context) (a, b *client, err error) {
	if a, b, err = s.pair(ctx); err != nil {
		return a, b, err
	}
	s.tell(a, "run 1")
	s.tell(b, "run 1")
	s.wait(ctx, time.Second)
	return a, b, nil
}

// after notes what has become of clients that compute, by what they are: they go on, or have failed.
func (s *stage) after(ctx context.Context, clients map[string]*client) {
	s.wait(ctx, 2*time.Second)
	for what, c := range clients {
		s.tell(c, "stop")
		a := s.answer(ctx, c, 3*time.Second)
		s.facts[what] = fmt.Sprintf("goes on: %d right, %d wrong", a.N-a.Wrong, a.Wrong)
		if a.Failed != nil || a.Why != "" {
			c.first = a
			s.facts[what] = "fails: " + c.first.failure()
		}
	}
}

// clientFaults: who of the server's clients gets a fault, and how the server comes back.
func clientFaults(ctx context.Context, s *stage) error {
	a, b, err := s.busy(ctx)
	if err != nil {
		return err
	}
	c := s.connect(ctx, "c", clientOptions{})
	s.tell(c, "fault")
	fault := s.answer(ctx, c, 5*time.Second)
	s.facts["the client that faults"] = fault
	s.watch(ctx, time.Second, func(string) bool { return false })
	late := s.connect(ctx, "late", clientOptions{wait: 3 * time.Second})
	s.facts["a new client while the others are there"] = late.computes()
	s.after(ctx, map[string]*client{"neighbour a": a, "neighbour b": b})
	s.dismiss(s.clients...)
	s.watch(ctx, 4*time.Second, func(status string) bool { return !strings.Contains(status, "FAULT") })
	last := s.connect(ctx, "new", clientOptions{wait: 5 * time.Second})
	s.facts["a new client after all have gone"] = last.computes()
	return nil
}

// lose kills a client with work in flight, as it is or after terminate_client; its neighbour checks what it computes.
func (s *stage) lose(ctx context.Context, terminate bool) error {
	a, b, err := s.busy(ctx)
	if err != nil {
		return err
	}
	if terminate {
		said, err := s.ask(ctx, fmt.Sprintf("terminate_client %d %d", s.server(ctx), a.pid()))
		s.note("terminate_client: %.200q %s", said, errText(err))
		s.facts["the terminated client"] = s.answer(ctx, a, 2*time.Second)
	}
	s.kill("client a", a.pid())
	s.watch(ctx, time.Second, func(string) bool { return false })
	s.after(ctx, map[string]*client{"the neighbour": b})
	late := s.connect(ctx, "new", clientOptions{wait: 5 * time.Second})
	s.facts["a new client"] = late.computes()
	return nil
}

// limits: what holds a client to a part of the memory and of the SMs.
func limits(ctx context.Context, s *stage) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.serve(ctx, os.Getuid())
	free := s.connect(ctx, "free", clientOptions{})
	for name, gpu := range map[string]string{"by number": "0", "by UUID": s.card.UUID} {
		c := s.connect(ctx, name, clientOptions{env: []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + gpu + "=2G"}})
		s.tell(c, "alloc 4096")
		s.facts["memory limited to 2048 MiB "+name] = s.answer(ctx, c, 5*time.Second)
	}
	half := s.connect(ctx, "half", clientOptions{env: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}})
	s.facts["SMs"] = map[string]int{"of a free client": free.first.SMs, "at 50 %": half.first.SMs}
	return nil
}

// privateShm: a client with a /dev/shm that isn't the server's.
func privateShm(ctx context.Context, s *stage) error {
	if err := s.start(ctx); err != nil {
		return err
	}
	s.serve(ctx, os.Getuid())
	c := s.connect(ctx, "private", clientOptions{shm: true})
	s.facts["it computes"] = c.computes()
	said, _ := s.ask(ctx, fmt.Sprintf("get_client_list %d", s.server(ctx)))
	s.facts["it is a client of the server"] = strings.Contains(said, fmt.Sprint(c.first.PID))
	s.lists()
	return nil
}

// deadSocket: what a client does where no daemon answers: an error, or does it compute without MPS?
func deadSocket(ctx context.Context, s *stage) error {
	try := func(when string) {
		c := s.connect(ctx, when, clientOptions{wait: 5 * time.Second})
		s.facts[when] = c.first
		s.dismiss(c)
	}
	try("no pipe directory")
	if err := os.MkdirAll(s.pipe(), 0o755); err != nil {
		return err
	}
	try("an empty pipe directory")
	if err := s.start(ctx); err != nil {
		return err
	}
	s.serve(ctx, os.Getuid())
	for _, pid := range s.programs("nvidia-cuda-mps-control") {
		s.kill("the daemon", pid)
	}
	s.wait(ctx, 200*time.Millisecond)
	s.files("after the daemon")
	try("the daemon killed, its server alive")
	for _, pid := range s.programs("nvidia-cuda-mps-server") {
		s.kill("the server", pid)
	}
	s.wait(ctx, 200*time.Millisecond)
	try("both killed")
	return nil
}

// serverKilled: what the clients of a killed server get, what the daemon logs, and who serves the next client.
func serverKilled(ctx context.Context, s *stage) error {
	a, b, err := s.busy(ctx)
	if err != nil {
		return err
	}
	s.kill("the server", s.server(ctx))
	s.watch(ctx, time.Second, func(string) bool { return false })
	s.after(ctx, map[string]*client{"client a": a, "client b": b})
	late := s.connect(ctx, "new", clientOptions{wait: 5 * time.Second})
	s.facts["a new client"] = late.computes()
	log, _ := os.ReadFile(filepath.Join(s.log(), "control.log"))
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "exited") {
			s.note("%s", strings.TrimSpace(line))
		}
	}
	return nil
}

// users has a second user's client come while the first's computes, and after it.
func (s *stage) users(ctx context.Context, args ...string) error {
	if os.Getuid() != 0 {
		return fmt.Errorf("it takes root to be two users")
	}
	if err := s.start(ctx, args...); err != nil {
		return err
	}
	s.serve(ctx, 0)
	a := s.connect(ctx, "root's", clientOptions{})
	s.tell(a, "run 1")
	b := s.connect(ctx, "another user's", clientOptions{uid: other, wait: 4 * time.Second})
	if b.cmd.Process == nil {
		return fmt.Errorf("no client of another user: %s", b.first.failure())
	}
	s.facts["while the first computes, the second does"] = b.computes()
	s.after(ctx, map[string]*client{"the first": a})
	s.dismiss(a)
	if !b.computes() && b.first.Failed == nil {
		b.first = s.answer(ctx, b, 5*time.Second)
		s.facts["once the first has gone, the second does"] = b.computes()
	}
	s.watch(ctx, 200*time.Millisecond, func(string) bool { return false })
	return nil
}
