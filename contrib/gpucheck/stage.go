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

// stage is what a situation has: an MPS daemon and clients of its own.
type stage struct {
	*check
	client []string // what to run for a client: by this path another user can run it, too
	folder string   // of the situation
	name   string   // the situation's
	begin  time.Time
	facts  map[string]any
	events []string
	looks  []sampled // at the card while kernels iterated last

	env     []string // of the daemon; nil = it was never started
	clients []*client
	servers map[int]bool // that were there
	putBack func() error // puts the compute mode back
}

// note writes down what was seen, and when.
func (s *stage) note(format string, args ...any) {
	s.events = append(s.events, fmt.Sprintf("%.3f ", time.Since(s.begin).Seconds())+fmt.Sprintf(format, args...))
}

// ofGPU is the card's folder, where a node's hooks have it.
func (s *stage) ofGPU() string { return filepath.Join(s.folder, "mps/gpu"+strconv.Itoa(s.card.Index)) }
func (s *stage) pipe() string  { return filepath.Join(s.ofGPU(), "pipe") }
func (s *stage) log() string   { return filepath.Join(s.ofGPU(), "log") }

// folders are what clients and the daemon find each other by.
func (s *stage) folders() []string {
	return []string{"CUDA_MPS_PIPE_DIRECTORY=" + s.pipe(), "CUDA_MPS_LOG_DIRECTORY=" + s.log()}
}

// environ is what each program of the stage has in its environment. The driver's programs and libraries of a borrowed
// machine are below /usr/local/nvidia.
func environ() []string {
	out := slices.DeleteFunc(os.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "CUDA_") })
	libraries := os.Getenv("LD_LIBRARY_PATH")
	if _, err := os.Stat(libraryFolders[0]); err == nil {
		libraries = strings.TrimPrefix(libraries+":"+libraryFolders[0], ":")
	}
	if libraries != "" {
		out = append(out, "LD_LIBRARY_PATH="+libraries)
	}
	return out
}

// until asks again and again, for so long, whether something is so.
func until(ctx context.Context, lasts time.Duration, is func() bool) bool {
	for end := time.Now().Add(lasts); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(20 * time.Millisecond) {
		if is() {
			return true
		}
	}
	return false
}

// start starts the control daemon for the card, and a server of this user's.
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
	s.env = slices.Concat(environ(), s.folders(), []string{"CUDA_VISIBLE_DEVICES=" + s.card.UUID})
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	said, err := output(short, "", s.env, append([]string{s.control, "-d"}, args...)...)
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return fmt.Errorf("start the MPS daemon %v: %w", args, err)
	}
	s.note("daemon %v started: %.200q", args, said)
	if !until(short, time.Minute, func() bool { _, err = s.ask(short, "get_server_list"); return err == nil }) {
		return fmt.Errorf("the MPS daemon doesn't answer: %w", err)
	}
	// A daemon too old to tell of states logs that the server is ready.
	s.command(ctx, "start_server -uid %d", os.Getuid())
	if !s.watch(ctx, s.card.starts, func(status string) bool {
		log, _ := os.ReadFile(filepath.Join(s.log(), "control.log"))
		return strings.Contains(status, "ACTIVE") || bytes.Contains(log, []byte("Ready"))
	}) {
		s.card.starts = 2 * time.Second // where one never takes clients, the next are waited for less long
	}
	return nil
}

// output runs a program to its end and returns what it printed.
func output(ctx context.Context, stdin string, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin, cmd.WaitDelay = env, strings.NewReader(stdin), time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%w: %.2000s", err, bytes.TrimSpace(out))
	}
	return strings.TrimSpace(string(out)), nil
}

// ask gives the daemon a command.
func (s *stage) ask(ctx context.Context, line string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return output(ctx, line+"\n", s.env, s.control)
}

// command gives the daemon a command, and notes and returns what it says.
func (s *stage) command(ctx context.Context, format string, args ...any) string {
	line := fmt.Sprintf(format, args...)
	said, err := s.ask(ctx, line)
	s.note("%s: %.400q %s", line, said, errText(err))
	return said
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// server is the daemon's only or last server, 0 = none.
func (s *stage) server(ctx context.Context) (pid int) {
	list, _ := s.ask(ctx, "get_server_list")
	for _, word := range strings.Fields(list) {
		pid, _ = strconv.Atoi(word)
		s.servers[pid] = true
	}
	return pid
}

// watch notes each change of what the daemon says of the server, until done says so or the time is over; done nil = for
// all of it.
func (s *stage) watch(ctx context.Context, lasts time.Duration, done func(status string) bool) bool {
	last := ""
	return until(ctx, s.long(lasts), func() bool {
		status := "no server"
		if pid := s.server(ctx); pid != 0 {
			said, err := s.ask(ctx, fmt.Sprintf("get_server_status %d", pid))
			if err != nil {
				said = "error: " + err.Error()
			}
			status = fmt.Sprintf("server %d: %s", pid, said)
		}
		if status != last {
			s.note("%s", status)
			last = status
		}
		return done != nil && done(status)
	})
}

// client is a process that computes.
type client struct {
	name        string
	pid         int            // 0 = it was not started
	in          io.WriteCloser // nil = it was not started
	answers     chan answer    // closed at its end
	errs        bytes.Buffer
	first, last answer
}

// options of a client.
type clientOptions struct {
	uid     int     // 0 = this one's
	visible string  // CUDA_VISIBLE_DEVICES; "" = the card's UUID, "none" = not set
	kernel  *Kernel // nil = the checker
	env     []string
	vars    []string // of MPS and CUDA; nil = the stage's
	shm     bool     // a /dev/shm of its own
	wait    time.Duration
}

// connect starts a client of the stage's daemon and returns it once it has a context, or has failed to get one. Its
// process group is its own: an interrupt from the terminal doesn't reach it.
func (s *stage) connect(ctx context.Context, name string, o clientOptions) *client {
	c := &client{name: name, answers: make(chan answer, 16)}
	s.clients = append(s.clients, c)
	kernel, _ := json.Marshal(cmp.Or(o.kernel, checker))
	cmd := exec.Command(s.client[0], append(s.client[1:len(s.client):len(s.client)], string(kernel))...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Args[0], cmd.Stderr, cmd.WaitDelay, cmd.Dir = "gpucheck", &c.errs, time.Second, "/"
	if o.shm {
		cmd.Args = append(cmd.Args, "--private-shm")
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	if o.uid != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(o.uid), Gid: uint32(o.uid)} //nolint:gosec // a user
	}
	cmd.Env = append(environ(), o.env...)
	if s.control != "" {
		cmd.Env = append(cmd.Env, s.folders()...)
	}
	if o.visible != "none" {
		cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+cmp.Or(o.visible, s.card.UUID))
	}
	if o.vars != nil {
		cmd.Env = append(environ(), o.vars...)
	}
	in, err := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err = errors.Join(err, oerr, cmd.Start()); err != nil {
		_, _ = c.errs.WriteString(err.Error())
		close(c.answers)
	} else {
		c.in, c.pid = in, cmd.Process.Pid
		go func() {
			defer close(c.answers)
			defer func() { _, _ = io.Copy(io.Discard, out); _ = cmd.Wait() }() // its complaint is known then
			for lines := json.NewDecoder(out); ; {
				var a answer
				if lines.Decode(&a) != nil {
					return
				}
				c.answers <- a
			}
		}()
	}
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
			a.Why = strings.TrimSpace("it has ended " + c.errs.String())
		}
	case <-time.After(wait):
		a.Why = fmt.Sprintf("no answer for %v", wait)
	case <-ctx.Done():
		a.Why = "there is no time left"
	}
	body, _ := json.Marshal(a)
	s.note("client %s: %s", c.name, body)
	c.last = a
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

// stop ends what a client computes, and returns what it says of it.
func (s *stage) stop(ctx context.Context, c *client, wait time.Duration) answer {
	s.tell(c, "stop")
	return s.answer(ctx, c, wait)
}

// computes reports whether a client got a context.
func (c *client) computes() bool { return c.first.failure() == "" }

// kill ends a process by a signal.
func (s *stage) kill(what string, pid int) {
	if pid > 1 {
		s.note("SIGKILL to %s (%d): %s", what, pid, errText(syscall.Kill(pid, syscall.SIGKILL)))
	}
}

// programs are the stage's processes whose name begins so, by their pipe directory: its daemon, servers and clients.
func (s *stage) programs(name string) (pids []int) {
	for _, p := range processes("/proc", name) {
		if env, _ := p.Environ(); slices.Contains(env, s.folders()[0]) {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// dismiss closes the clients' input, at which they end, and kills clients that hang for a second; under MPS that may
// end others.
func (s *stage) dismiss(clients ...*client) {
	clients = slices.DeleteFunc(slices.Clone(clients), func(c *client) bool { return c.in == nil })
	end := time.Now().Add(time.Second)
	for _, c := range clients {
		_ = c.in.Close()
	}
	for _, c := range clients {
		gone := time.AfterFunc(time.Until(end), func() { _ = syscall.Kill(-c.pid, syscall.SIGKILL) })
		for range c.answers { // until its end
		}
		gone.Stop()
	}
}

// end ends all that the situation has started, and puts back what it has changed.
func (s *stage) end() error {
	s.dismiss(s.clients...)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	if s.env != nil {
		_, _ = s.ask(ctx, "quit -t 1")
	}
	none := func() bool { return len(s.programs("")) == 0 }
	until(context.Background(), 2*time.Second, none)
	for _, pid := range s.programs("") {
		s.servers[pid] = true
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	until(context.Background(), 10*time.Second, none) // a busy machine takes its time
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
	if err := s.putBack(); err != nil {
		return fmt.Errorf("put the compute mode back: %w", err)
	}
	return nil
}
