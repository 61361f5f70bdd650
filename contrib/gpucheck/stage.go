package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec" //nolint:depguard // clients are run here, and the MPS control program
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// stage is what a situation of the protocol has: an MPS daemon and clients of its own.
type stage struct {
	card    *card
	control string
	client  []string // what to run for a client: by this path another user can run it, too
	folder  string   // of the situation
	results *results
	name    string // the situation's
	begin   time.Time
	facts   map[string]any
	events  []string
	looks   []sampled // at the card while kernels iterated last
	pace    float64   // by which all waiting is shortened

	env     []string // of the daemon
	clients []*client
	servers map[int]bool // that were there
}

// note writes down what was seen, and when.
func (s *stage) note(format string, args ...any) {
	s.events = append(s.events, fmt.Sprintf("%.3f ", time.Since(s.begin).Seconds())+fmt.Sprintf(format, args...))
}

func (s *stage) pipe() string { return filepath.Join(s.folder, "pipe") }
func (s *stage) log() string  { return filepath.Join(s.folder, "log") }

// environ is what each program of the stage has in its environment. The driver's programs and libraries of a borrowed
// machine are below /usr/local/nvidia.
func environ() []string {
	var out []string
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "CUDA_") {
			out = append(out, kv)
		}
	}
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if _, err := os.Stat(libraryFolders[0]); err == nil {
		libraries = strings.TrimPrefix(libraries+":"+libraryFolders[0], ":")
	}
	if libraries != "" {
		out = append(out, "LD_LIBRARY_PATH="+libraries)
	}
	return out
}

// start starts the control daemon for the card.
func (s *stage) start(ctx context.Context, args ...string) error {
	if s.control == "" {
		return errors.New("there is no MPS here")
	}
	for _, d := range []string{s.pipe(), s.log()} {
		if err := os.MkdirAll(d, 0o777); err != nil {
			return err
		}
		_ = os.Chmod(d, 0o777) //nolint:gosec // clients of another user use it for a moment
	}
	s.env = append(environ(),
		"CUDA_MPS_PIPE_DIRECTORY="+s.pipe(), "CUDA_MPS_LOG_DIRECTORY="+s.log(), "CUDA_VISIBLE_DEVICES="+s.card.UUID)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	said, err := output(ctx, "", s.env, append([]string{s.control, "-d"}, args...)...)
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("start the MPS daemon %v: %w", args, err)
	}
	s.note("daemon %v started: %.200q", args, said)
	for {
		if _, err = s.ask(ctx, "get_server_list"); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the MPS daemon doesn't answer: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, stdin string, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, strings.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %.2000s", err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// ask gives the daemon a command.
func (s *stage) ask(ctx context.Context, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out, err := output(ctx, line+"\n", s.env, s.control)
	return strings.TrimSpace(out), err
}

// server is the daemon's only or last server, 0 = none.
func (s *stage) server(ctx context.Context) int {
	list, _ := s.ask(ctx, "get_server_list")
	words := strings.Fields(list)
	if len(words) == 0 {
		return 0
	}
	pid, _ := strconv.Atoi(words[len(words)-1])
	s.servers[pid] = true
	return pid
}

// status is what the daemon says of a server.
func (s *stage) status(ctx context.Context, pid int) string {
	said, err := s.ask(ctx, fmt.Sprintf("get_server_status %d", pid))
	if err != nil {
		return "error: " + err.Error()
	}
	return said
}

// watch notes each change of what the daemon says of the server, until done says so or the time is over.
func (s *stage) watch(ctx context.Context, lasts time.Duration, done func(status string) bool) {
	last := "?"
	end := time.Now().Add(s.long(lasts))
	for ; time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		pid := s.server(ctx)
		status := "no server"
		if pid != 0 {
			status = fmt.Sprintf("server %d: %s", pid, s.status(ctx, pid))
		}
		if status != last {
			s.note("%s", status)
			last = status
		}
		if done(status) {
			return
		}
	}
}

// serve starts a user's server and waits until it takes clients. A daemon too old to tell of states logs that the
// server is ready. Where one never is, the next are waited for less long.
func (s *stage) serve(ctx context.Context, uid int) {
	said, err := s.ask(ctx, fmt.Sprintf("start_server -uid %d", uid))
	s.note("start_server -uid %d: %.200q %v", uid, said, err)
	ready := false
	s.watch(ctx, s.card.starts, func(status string) bool {
		log, _ := os.ReadFile(filepath.Join(s.log(), "control.log"))
		ready = strings.Contains(status, "ACTIVE") || bytes.Contains(log, []byte("Ready"))
		return ready
	})
	if !ready {
		s.card.starts = 2 * time.Second
	}
}

// client is a process that computes.
type client struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer // closed at its end
	errs    *bytes.Buffer
	first   answer
}

// launch starts a client's program, in a process group of its own: an interrupt from the terminal doesn't reach it.
func launch(name string, argv, env []string, attr *syscall.SysProcAttr) *client {
	c := &client{
		name: name, answers: make(chan answer, 16), errs: new(bytes.Buffer),
		cmd: exec.Command(argv[0], argv[1:]...),
	}
	attr.Setpgid, c.cmd.Args[0] = true, "gpucheck"
	c.cmd.Env, c.cmd.Stderr, c.cmd.SysProcAttr, c.cmd.WaitDelay, c.cmd.Dir = env, c.errs, attr, time.Second, "/"
	in, err := c.cmd.StdinPipe()
	out, oerr := c.cmd.StdoutPipe()
	if err = errors.Join(err, oerr, c.cmd.Start()); err != nil {
		_, _ = c.errs.WriteString(err.Error())
		close(c.answers)
		return c
	}
	c.in = in
	go func() {
		defer close(c.answers)
		defer func() { _, _ = io.Copy(io.Discard, out); _ = c.cmd.Wait() }() // its complaint is known then
		for lines := json.NewDecoder(out); ; {
			var a answer
			if lines.Decode(&a) != nil {
				return
			}
			c.answers <- a
		}
	}()
	return c
}

// options of a client.
type clientOptions struct {
	uid     int // 0 = this one's
	visible string
	env     []string
	args    []string
	shm     bool // a /dev/shm of its own
	wait    time.Duration
}

// connect starts a client of the stage's daemon and returns it once it has a context, or has failed to get one.
func (s *stage) connect(ctx context.Context, name string, o clientOptions) *client {
	argv, attr := slices.Concat(s.client, o.args), &syscall.SysProcAttr{}
	if o.shm {
		argv = append(argv, "--private-shm")
		attr.Unshareflags = syscall.CLONE_NEWNS
	}
	if o.uid != 0 {
		attr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.uid)} //nolint:gosec // a user
	}
	env := append(environ(), o.env...)
	if s.control != "" {
		env = append(env, "CUDA_MPS_PIPE_DIRECTORY="+s.pipe(), "CUDA_MPS_LOG_DIRECTORY="+s.log())
	}
	if o.visible != "none" {
		env = append(env, "CUDA_VISIBLE_DEVICES="+cmp.Or(o.visible, s.card.UUID))
	}
	c := launch(name, argv, env, attr)
	s.clients = append(s.clients, c)
	c.first = s.answer(ctx, c, cmp.Or(o.wait, 15*time.Second))
	return c
}

// long is how long something is waited for.
func (s *stage) long(d time.Duration) time.Duration { return time.Duration(float64(d) * s.pace) }

func (s *stage) wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(s.long(d)):
	}
}

// answer notes and returns what a client says next, or why it doesn't.
func (s *stage) answer(ctx context.Context, c *client, wait time.Duration) (a answer) {
	select {
	case next, ok := <-c.answers:
		if a = next; !ok {
			a.Why = "it has ended" + strings.TrimRight(" "+strings.TrimSpace(c.errs.String()), " ")
		}
	case <-time.After(wait):
		a.Why = fmt.Sprintf("no answer for %v", wait)
	case <-ctx.Done():
		a.Why = "there is no time left"
	}
	body, _ := json.Marshal(a)
	s.note("client %s: %s", c.name, body)
	return a
}

// tell gives a client a command.
func (s *stage) tell(c *client, command string) {
	err := errors.New("it was not started")
	if c.in != nil {
		_, err = io.WriteString(c.in, command+"\n")
	}
	s.note("client %s is told %q %s", c.name, command, errText(err))
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// pid is a client's process, 0 = it has none.
func (c *client) pid() int {
	if c.cmd.Process == nil {
		return 0
	}
	return c.cmd.Process.Pid
}

// computes reports whether a client got a context.
func (c *client) computes() bool { return c.first.failure() == "" }

// kill ends a process by a signal.
func (s *stage) kill(what string, pid int) {
	if pid <= 1 {
		return
	}
	s.note("SIGKILL to %s (%d): %s", what, pid, errText(syscall.Kill(pid, syscall.SIGKILL)))
}

// programs are the stage's processes of a name, by their pipe directory: its daemon, servers and clients.
func (s *stage) programs(name string) (pids []int) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	mark := []byte("CUDA_MPS_PIPE_DIRECTORY=" + s.pipe())
	marked := func(kv []byte) bool { return bytes.Equal(kv, mark) }
	for _, dir := range dirs {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !slices.ContainsFunc(bytes.Split(env, []byte{0}), marked) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		argv0, _, _ := bytes.Cut(line, []byte{0})
		if strings.HasPrefix(filepath.Base(string(argv0)), name) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// dismiss closes the clients' input, at which they end, and kills clients that hang for a second; under MPS that may
// end others.
func (s *stage) dismiss(clients ...*client) {
	clients = slices.DeleteFunc(clients, func(c *client) bool { return c.in == nil })
	end := time.Now().Add(time.Second)
	for _, c := range clients {
		_ = c.in.Close()
	}
	for _, c := range clients {
		gone := time.AfterFunc(time.Until(end), func() { _ = syscall.Kill(-c.pid(), syscall.SIGKILL) })
		for range c.answers { // until its end
		}
		gone.Stop()
	}
}

// end ends all that the situation has started.
func (s *stage) end() {
	s.dismiss(s.clients...)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if len(s.env) > 0 {
		_, _ = s.ask(ctx, "quit -t 1")
	}
	for until := time.Now().Add(2 * time.Second); len(s.programs("")) > 0 && time.Now().Before(until); {
		time.Sleep(20 * time.Millisecond)
	}
	for _, pid := range s.programs("") {
		s.servers[pid] = true
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	// A server that was killed leaves the memory that it shared.
	for pid := range s.servers {
		left, _ := filepath.Glob(fmt.Sprintf("/dev/shm/cuda.shm.*.%x.*", pid))
		for _, name := range left {
			_ = os.Remove(name)
		}
	}
	for _, name := range []string{"control.log", "server.log"} {
		s.results.keep(filepath.Join(s.log(), name), s.name)
	}
	_ = os.RemoveAll(s.folder)
}
