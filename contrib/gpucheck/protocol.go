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
	"syscall"
	"time"
)

// situation is something that happens to jobs that share a GPU. What playing it returns says why it shows no more; that
// a client fails is a fact and no error.
type situation struct {
	name string
	// daemon are the arguments of the MPS daemon that runs, with a server, when it begins; nil = none does.
	daemon []string
	play   func(ctx context.Context, s *stage) error
}

// other is the second user.
const other = 65534

// usual is a daemon without arguments.
var usual = []string{}

// situations are played in this order: what the rest needs first, then what jobs meet most often.
var situations = []situation{
	{"machine", nil, theMachine},
	{"states of a server", usual, serverStates},
	{"a client by UUID and by number", usual, clientsByName},
	{"four jobs by the product's hooks", nil, jobsOfANode},
	{"process samples of a 90/10 pair", usual, samplesOfAPair},
	{"a client faults", usual, clientFaults},
	{"a busy client is killed", usual, func(ctx context.Context, s *stage) error { return s.lose(ctx, false) }},
	{
		"a busy client is terminated, then killed", usual,
		func(ctx context.Context, s *stage) error { return s.lose(ctx, true) },
	},
	{"a busy client is stopped for a while", usual, stopped},
	{"a memory limit and a thread percentage", usual, limits},
	{"a private /dev/shm", usual, privateShm},
	{"a dead socket", nil, deadSocket},
	{"the server is killed", usual, serverKilled},
	{"two users", usual, users},
	{"two users of a -multiuser-server", []string{"-multiuser-server"}, users},
	{"the mode EXCLUSIVE_PROCESS", nil, exclusive},
}

// mostOfSituation is the longest that a situation of the protocol may take.
const mostOfSituation = 25 * time.Second

// play plays situations for so long: each takes its time or, where they are evenly long, an equal part of what is left.
// Each has a stage of its own, and leaves nothing behind.
func (k *check) play(ctx context.Context, all []situation, lasts time.Duration, evenly bool) {
	end := time.Now().Add(lasts)
	for i, sit := range all {
		if ctx.Err() != nil || lasts == 0 {
			return
		}
		most := mostOfSituation
		if evenly {
			most = time.Until(end) / time.Duration(len(all)-i)
		}
		s := &stage{
			check: k, client: []string{"/proc/self/exe", "client"}, name: sit.name, begin: time.Now(),
			facts: map[string]any{}, servers: map[int]bool{}, putBack: func() error { return nil },
		}
		err := s.play(ctx, sit, min(most, time.Until(end)))
		err = errors.Join(err, s.end())
		s.facts["events"] = s.events
		k.results.add(sit.name, s.begin, s.facts, err)
	}
}

// play plays a situation.
func (s *stage) play(ctx context.Context, sit situation, most time.Duration) (err error) {
	if most <= 0 {
		return errors.New("no time was left for it")
	}
	if s.folder, err = os.MkdirTemp("", "gc"); err != nil {
		return err
	}
	_ = os.Chmod(s.folder, 0o755) //nolint:gosec // clients of another user use it for a moment
	ctx, stop := context.WithTimeout(ctx, most)
	defer stop()
	if sit.daemon != nil {
		if err := s.start(ctx, sit.daemon...); err != nil {
			return err
		}
	}
	return sit.play(ctx, s)
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
		const figures = "index,uuid,name,driver_version,compute_mode,persistence_mode,mig.mode.current," +
			"memory.total,memory.reserved,memory.used"
		said, err := output(ctx, "", environ(), smi, "--query-gpu="+figures, "--format=csv")
		s.note("nvidia-smi: %s %s", said, errText(err))
	}
	if s.control != "" {
		said, err := output(ctx, "help\n", append(environ(), s.folders()...), s.control)
		s.note("help without a daemon: %.400q %s", said, errText(err))
	}
	// A context of its own, with no daemon: what CUDA is here. At first nothing holds the GPU, as on an idle node, where
	// the agent has closed it; then somebody does.
	s.facts["device files open with NVML"] = openDevices()
	err := s.card.lib.Release()
	s.facts["device files open after NVML was shut down"] = openDevices()
	c := s.connect(ctx, "without MPS, from cold", clientOptions{})
	_, again := s.card.lib.Acquire()
	s.facts["cuda"] = c.computes()
	if !c.computes() {
		return errors.Join(fmt.Errorf("CUDA doesn't compute: %s", c.first.failure()), err, again)
	}
	warm := s.connect(ctx, "without MPS, from warm", clientOptions{})
	s.facts["first context from cold, s"], s.facts["from warm, s"] = c.first.Seconds, warm.first.Seconds
	if again == nil {
		used, merr := s.card.Memory()
		s.facts["mib in use by two contexts, as NVML says"] = used
		s.note("%s memory that can be had: %v MiB by NVML, %v MiB by CUDA", errText(merr), s.card.MemMiB, c.first.TotalMiB)
	}
	return errors.Join(err, again)
}

// openDevices is how many files of NVIDIA's driver this process has open.
func openDevices() (n int) {
	files, _ := filepath.Glob("/proc/self/fd/*")
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil && strings.HasPrefix(to, "/dev/nvidia") {
			n++
		}
	}
	return n
}

// serverStates: what the daemon says of a server from its start to its end, and what it leaves in its folder.
func serverStates(ctx context.Context, s *stage) error {
	s.files("with a server")
	s.connect(ctx, "a", clientOptions{})
	server := s.server(ctx)
	for _, command := range []string{
		"get_server_list", fmt.Sprintf("get_server_status %d", server), fmt.Sprintf("get_client_list %d", server), "ps",
		"get_default_active_thread_percentage", fmt.Sprintf("get_device_client_list %d", server), "nonsense",
	} {
		s.command(ctx, "%s", command)
	}
	s.lists()
	s.dismiss(s.clients...)
	s.command(ctx, "quit")
	until(ctx, s.long(5*time.Second), func() bool { return len(s.programs("nvidia-cuda-mps")) == 0 })
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
	for _, visible := range []string{s.card.UUID, "0", "none"} {
		c := s.connect(ctx, "CUDA_VISIBLE_DEVICES="+visible, clientOptions{visible: visible})
		if s.facts["visible"] == nil && c.computes() {
			s.facts["visible"], s.card.visible = visible, visible
		}
		s.command(ctx, "get_client_list %d", s.server(ctx))
	}
	s.lists()
	if s.facts["visible"] == nil {
		return errors.New("no client computes")
	}
	return nil
}

// pair starts two clients that compute for these parts of the time and check their results.
func (s *stage) pair(ctx context.Context, dutyA, dutyB float64) (a, b *client, err error) {
	a, b = s.connect(ctx, "a", clientOptions{}), s.connect(ctx, "b", clientOptions{})
	for _, c := range []*client{a, b} {
		if !c.computes() {
			return a, b, fmt.Errorf("client %s doesn't compute: %s", c.name, c.first.failure())
		}
	}
	s.tell(a, checker.run(dutyA))
	s.tell(b, checker.run(dutyB))
	s.wait(ctx, time.Second)
	return a, b, nil
}

// samplesOfAPair: who gets the driver's samples of processes, for a pair that computes nine tenths and a tenth of the
// time, and for one of them alone, next to what performance monitoring sees.
func samplesOfAPair(ctx context.Context, s *stage) error {
	a, b, err := s.pair(ctx, 0.9, 0.1)
	if err != nil {
		return err
	}
	s.facts["pids"] = map[string]int{"a": a.pid, "b": b.pid, "server": s.server(ctx)}
	look := func(name string, lasts time.Duration) {
		rows := s.look(ctx, lasts)
		s.facts[name], s.facts[name+", mean"] = rows, meanOf(rows)
	}
	s.lists()
	look("90/10", 6*time.Second)
	s.facts["b"] = s.stop(ctx, b, 2*time.Second)
	look("90/0", 3*time.Second)
	s.facts["a"] = s.stop(ctx, a, 2*time.Second)
	return nil
}

// after notes what has become of clients that compute, by what they are: they go on, or have failed.
func (s *stage) after(ctx context.Context, clients map[string]*client) {
	s.wait(ctx, 2*time.Second)
	for what, c := range clients {
		a := s.stop(ctx, c, 3*time.Second)
		s.facts[what] = fmt.Sprintf("goes on: %d right, %d wrong", a.N-a.Wrong, a.Wrong)
		if why := a.failure(); why != "" {
			s.facts[what] = "fails: " + why
		}
	}
}

// comes notes whether a client that comes now computes.
func (s *stage) comes(ctx context.Context, what string, wait time.Duration) {
	s.facts[what] = s.connect(ctx, what, clientOptions{wait: wait}).computes()
}

// clientFaults: who of the server's clients gets a fault, and how the server comes back.
func clientFaults(ctx context.Context, s *stage) error {
	a, b, err := s.pair(ctx, 1, 1)
	if err != nil {
		return err
	}
	c := s.connect(ctx, "c", clientOptions{})
	s.tell(c, "fault")
	s.facts["the client that faults"] = s.answer(ctx, c, 5*time.Second)
	s.watch(ctx, time.Second, nil)
	s.comes(ctx, "a new client while the others are there", 3*time.Second)
	s.after(ctx, map[string]*client{"neighbour a": a, "neighbour b": b})
	s.dismiss(s.clients...)
	s.watch(ctx, 4*time.Second, func(status string) bool { return !strings.Contains(status, "FAULT") })
	s.comes(ctx, "a new client after all have gone", 5*time.Second)
	return nil
}

// lose kills a client with work in flight, as it is or after terminate_client; its neighbour checks what it computes.
func (s *stage) lose(ctx context.Context, terminate bool) error {
	a, b, err := s.pair(ctx, 1, 1)
	if err != nil {
		return err
	}
	if terminate {
		s.command(ctx, "terminate_client %d %d", s.server(ctx), a.pid)
		s.facts["the terminated client"] = s.answer(ctx, a, 2*time.Second)
	}
	s.kill("client a", a.pid)
	s.watch(ctx, time.Second, nil)
	s.after(ctx, map[string]*client{"the neighbour": b})
	s.comes(ctx, "a new client", 5*time.Second)
	return nil
}

// halt stops a process. Tests without a GPU have another.
var halt = func(pid int) error { return syscall.Kill(pid, syscall.SIGSTOP) }

// stopped: whether a client goes on while its neighbour is stopped, as by scontrol suspend, and the neighbour
// afterwards; what ended clients leave in /dev/shm.
func stopped(ctx context.Context, s *stage) error {
	a, b, err := s.pair(ctx, 1, 1)
	if err != nil {
		return err
	}
	s.note("SIGSTOP to client a (%d): %s", a.pid, errText(halt(a.pid)))
	s.after(ctx, map[string]*client{"the neighbour, meanwhile": b})
	s.note("SIGCONT to client a (%d): %s", a.pid, errText(syscall.Kill(a.pid, syscall.SIGCONT)))
	s.after(ctx, map[string]*client{"the stopped client, afterwards": a})
	s.dismiss(s.clients...)
	left, _ := filepath.Glob("/dev/shm/cuda*")
	s.note("in /dev/shm, once the clients %d and %d have ended: %v", a.pid, b.pid, left)
	return nil
}

// limits: what holds a client to a part of the memory and of the SMs.
func limits(ctx context.Context, s *stage) error {
	free := s.connect(ctx, "free", clientOptions{})
	for name, gpu := range map[string]string{"by number": "0", "by UUID": s.card.UUID} {
		c := s.connect(ctx, name, clientOptions{env: []string{"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + gpu + "=2G"}})
		s.tell(c, "alloc 4096")
		s.facts["memory limited to 2048 MiB "+name] = s.answer(ctx, c, 5*time.Second)
	}
	half := s.connect(ctx, "half", clientOptions{env: []string{"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50"}})
	s.facts["SMs"] = map[string]int32{"of a free client": free.first.SMs, "at 50 %": half.first.SMs}
	return nil
}

// privateShm: a client with a /dev/shm that isn't the server's.
func privateShm(ctx context.Context, s *stage) error {
	c := s.connect(ctx, "private", clientOptions{shm: true})
	s.facts["it computes"] = c.computes()
	said := s.command(ctx, "get_client_list %d", s.server(ctx))
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
	a, b, err := s.pair(ctx, 1, 1)
	if err != nil {
		return err
	}
	s.kill("the server", s.server(ctx))
	s.watch(ctx, time.Second, nil)
	s.after(ctx, map[string]*client{"client a": a, "client b": b})
	s.comes(ctx, "a new client", 5*time.Second)
	log, _ := os.ReadFile(filepath.Join(s.log(), "control.log"))
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "exited") {
			s.note("%s", strings.TrimSpace(line))
		}
	}
	return nil
}

// users has a second user's client come while the first's computes, and after it.
func users(ctx context.Context, s *stage) error {
	if os.Getuid() != 0 {
		return errors.New("it takes root to be two users")
	}
	a := s.connect(ctx, "root's", clientOptions{})
	s.tell(a, checker.run(1))
	b := s.connect(ctx, "another user's", clientOptions{uid: other, wait: 4 * time.Second})
	if b.in == nil {
		return fmt.Errorf("no client of another user: %s", b.first.failure())
	}
	s.facts["while the first computes, the second does"] = b.computes()
	s.after(ctx, map[string]*client{"the first": a})
	s.dismiss(a)
	if !b.computes() && b.first.Failed == nil {
		b.first = s.answer(ctx, b, 5*time.Second)
		s.facts["once the first has gone, the second does"] = b.computes()
	}
	s.watch(ctx, 200*time.Millisecond, nil)
	return nil
}
