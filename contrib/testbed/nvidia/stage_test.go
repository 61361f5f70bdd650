package nvidia

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

const clientName = "standin-client"

// bins are the folders with the programs of a simulated daemon, and with those beside a real one.
var bins = map[bool]string{}

func TestMain(m *testing.M) {
	StandIn()
	if filepath.Base(os.Args[0]) == clientName {
		os.Exit(client())
	}
	os.Exit(tests(m))
}

func tests(m *testing.M) int {
	// The daemon's quit -t ends servers by SIGINT, which children of a shell's background job would ignore.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	real, err := Bin(dir)
	sim := filepath.Join(dir, "sim")
	bins[false], bins[true] = real, sim
	// Other users get in.
	if err := errors.Join(err, os.Chmod(dir, 0o755), built.Into(sim, "gpusim"), Self(filepath.Join(real, clientName)),
		Self(filepath.Join(sim, clientName))); err != nil {
		panic(err)
	}
	return m.Run()
}

// client is a program that computes on the GPU: "in" says that it has a server; a line of its input has it fault, the
// end of its input ends it.
func client() int {
	var fault func()
	if os.Getenv("GPUSIM_STATE") != "" {
		c, err := mps.Connect(context.Background(), os.Getenv)
		if err != nil {
			fmt.Println("refused")
			return 1
		}
		fault = c.Fault
	} else {
		c, err := Connect(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"))
		if err != nil {
			fmt.Println("refused")
			return 1
		}
		fault = func() { _ = c.Fault() }
	}
	fmt.Println("in")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fault()
	}
	return 0
}

// stage runs one situation on a control daemon, NVIDIA's own or the simulated GPU's, and takes down what is to be seen.
type stage struct {
	t              *testing.T
	driver         string
	simulated      bool
	control        string
	dir, pipe, log string
	env            []string
	out            strings.Builder
	names          map[string]string // of processes by pid: S1, S2, C1
	read           int               // bytes of control.log that the transcript has
	daemon         int
	clients        []*exec.Cmd
}

// newStage makes the place for one daemon. d.folder is "" for a simulated one.
func newStage(t *testing.T, d Driver) *stage {
	t.Helper()
	// The sockets' paths must be short, and other users get in.
	dir := must.Get(os.MkdirTemp("", "mps"))(t)
	must.OK(t, os.Chmod(dir, 0o755))
	s := &stage{
		t: t, driver: d.Name, control: d.Control(), dir: dir, pipe: filepath.Join(dir, "pipe"),
		log:   filepath.Join(dir, "log"),
		names: map[string]string{},
	}
	must.OK(t, os.Mkdir(s.pipe, 0o755), os.Mkdir(s.log, 0o755))
	if s.simulated = d.folder == ""; s.simulated {
		s.control = filepath.Join(bins[true], "nvidia-cuda-mps-control")
		state := filepath.Join(dir, "state")
		must.OK(t, gpusim.Create(state, gpusim.Config{GPUs: 1, Model: "h200", Driver: d.Name}))
		s.env = append(s.env, "GPUSIM_STATE="+state)
	}
	s.env = append(s.env, "PATH="+bins[s.simulated], "CUDA_MPS_PIPE_DIRECTORY="+s.pipe, "CUDA_MPS_LOG_DIRECTORY="+s.log,
		DriverEnv+"="+d.Name)
	t.Cleanup(s.end)
	return s
}

// end leaves no process behind: not a client, a server or a daemon.
func (s *stage) end() {
	for _, c := range s.clients {
		_ = c.Process.Kill()
		_ = c.Wait()
	}
	for again := true; again; {
		again = false
		all, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, path := range all {
			env, err := os.ReadFile(path)
			if err == nil && bytes.Contains(env, []byte("CUDA_MPS_PIPE_DIRECTORY="+s.pipe+"\x00")) {
				pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
				again = syscall.Kill(pid, syscall.SIGKILL) == nil || again
			}
		}
	}
	_ = os.RemoveAll(s.dir)
}

func (s *stage) writef(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

// run runs the control program and takes down what it prints and its exit status.
func (s *stage) run(title, stdin string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.control, args...)
	cmd.Env, cmd.Stdin, cmd.Dir = s.env, strings.NewReader(stdin), "/"
	// A file, since the daemon keeps the descriptors: the end of a pipe would never come.
	file := must.Get(os.Create(filepath.Join(s.dir, "output")))(s.t)
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	err := cmd.Run()
	out := must.Get(os.ReadFile(file.Name()))(s.t)
	if ctx.Err() != nil || cmd.ProcessState == nil {
		s.t.Fatalf("%s: %v: %s", title, err, out)
	}
	s.writef("> %s", title)
	lines := strings.Split(s.named(strings.TrimSuffix(string(out), "\n")), "\n")
	// The daemon lists clients and servers in an order of its own, which depends on their process IDs.
	if strings.HasPrefix(title, "get_client_list") || strings.HasPrefix(title, "get_server_list") {
		slices.Sort(lines)
	}
	for _, line := range lines {
		if len(out) > 0 {
			s.writef("%s", line)
		}
	}
	// That of quit is 0 or 1, as it happens, after a server has failed.
	if code := cmd.ProcessState.ExitCode(); code != 0 && !strings.HasPrefix(title, "quit") {
		s.writef("exit %d", code)
	}
	return string(out)
}

// move has the daemon use another pipe directory.
func (s *stage) move(pipe string) {
	s.t.Helper()
	must.OK(s.t, os.Mkdir(pipe, 0o755))
	for i := range s.env {
		s.env[i] = strings.Replace(s.env[i], "="+s.pipe, "="+pipe, 1)
	}
	s.pipe = pipe
}

// start starts the daemon, whose servers behave as mode says.
func (s *stage) start(mode string, args ...string) {
	s.t.Helper()
	s.env = slices.DeleteFunc(s.env, func(kv string) bool {
		return strings.HasPrefix(kv, ServerEnv+"=") || strings.HasPrefix(kv, mps.InitEnv+"=")
	})
	switch {
	case !s.simulated:
		s.env = append(s.env, ServerEnv+"="+mode)
	case mode == Starts:
		s.env = append(s.env, mps.InitEnv+"=1h")
	}
	if s.simulated {
		st := must.Get(gpusim.Open(filepath.Join(s.dir, "state")))(s.t)
		must.OK(s.t, st.Devices()[0].SetLost(mode == Fails), st.Close())
	}
	s.run(strings.Join(append([]string{"nvidia-cuda-mps-control -d"}, args...), " "), "",
		append([]string{"-d"}, args...)...)
	if pid := s.peer(); pid > 0 {
		delete(s.names, strconv.Itoa(s.daemon))
		s.daemon = pid
		s.names[strconv.Itoa(pid)] = "DAEMON"
	}
}

// say gives the daemon commands, in which S1 stands for the first server and C1 for the first client.
func (s *stage) say(commands ...string) {
	s.t.Helper()
	for _, c := range commands {
		s.run(c, s.numbered(c)+"\n")
	}
}

// server waits until the daemon has a server that isn't named yet, and names it.
func (s *stage) server() string {
	s.t.Helper()
	name := ""
	s.until("a server", func() bool {
		cmd := exec.Command(s.control)
		cmd.Env, cmd.Stdin = s.env, strings.NewReader("get_server_list\n")
		out, _ := cmd.Output()
		for _, pid := range strings.Fields(string(out)) {
			if s.names[pid] == "" {
				name = s.name("S", pid)
			}
		}
		return name != ""
	})
	if slices.Contains(s.env, ServerEnv+"="+Starts) {
		// It becomes sleep(1). Of a signal that comes before, Go's runtime makes an exit, or execve(2) loses it.
		s.until("the program "+name, func() bool {
			arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", s.pid(name)))
			return strings.HasSuffix(string(arguments), "\x003600\x00")
		})
	}
	return name
}

func (s *stage) name(kind, pid string) string {
	n := 1
	for _, known := range s.names {
		if strings.HasPrefix(known, kind) {
			n++
		}
	}
	s.names[pid] = kind + strconv.Itoa(n)
	return s.names[pid]
}

var number = regexp.MustCompile(`\b\d+\b`)

func (s *stage) named(text string) string {
	text = strings.ReplaceAll(text, s.dir, "DIR")
	return number.ReplaceAllStringFunc(text, func(n string) string {
		if name := s.names[n]; name != "" {
			return name
		}
		return n
	})
}

func (s *stage) numbered(text string) string {
	for pid, name := range s.names {
		text = strings.ReplaceAll(text, name, pid)
	}
	return text
}

func (s *stage) pid(name string) int {
	pid, err := strconv.Atoi(s.numbered(name))
	must.OK(s.t, err)
	return pid
}

// silent connects and says nothing, and takes down whether the daemon answers another.
func (s *stage) silent() {
	s.t.Helper()
	c := must.Get(net.Dial("unixpacket", filepath.Join(s.pipe, "control")))(s.t)
	cmd := exec.Command(s.control)
	cmd.Env, cmd.Stdin = s.env, strings.NewReader("get_server_list\n")
	must.OK(s.t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
		s.writef("# beside a silent client: answered")
	case <-time.After(300 * time.Millisecond):
		s.writef("# beside a silent client: no answer")
		must.OK(s.t, c.Close())
		must.OK(s.t, <-done)
		s.writef("# when it has gone: answered")
	}
}

// signal ends a process.
func (s *stage) signal(name string, signal syscall.Signal) {
	s.t.Helper()
	s.writef("# %s gets %s", name, unix.SignalName(signal))
	must.OK(s.t, syscall.Kill(s.pid(name), signal))
}

// enter starts a client, and waits until it has a server.
func (s *stage) enter(uid uint32) (c *exec.Cmd, in io.WriteCloser) {
	s.t.Helper()
	c, in, word := s.knock(uid)
	s.writef("# %s of user %d is %s", s.names[strconv.Itoa(c.Process.Pid)], uid, <-word)
	return c, in
}

// knock starts a client; its word comes when it has a server, or is refused.
func (s *stage) knock(uid uint32) (c *exec.Cmd, in io.WriteCloser, word chan string) {
	s.t.Helper()
	c = exec.Command(filepath.Join(bins[s.simulated], clientName))
	c.Env, c.Dir = s.env, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in = must.Get(c.StdinPipe())(s.t)
	out := must.Get(c.StdoutPipe())(s.t)
	must.OK(s.t, c.Start())
	s.clients = append(s.clients, c)
	s.name("C", strconv.Itoa(c.Process.Pid))
	word = make(chan string, 2)
	time.AfterFunc(time.Minute, func() { word <- "not in time" })
	go func() {
		said, _ := bufio.NewReader(out).ReadString('\n')
		word <- strings.TrimSpace(said)
	}()
	return c, in, word
}

// leave ends a client.
func (s *stage) leave(c *exec.Cmd, in io.Closer) {
	s.t.Helper()
	s.writef("# %s ends", s.names[strconv.Itoa(c.Process.Pid)])
	must.OK(s.t, in.Close(), c.Wait())
}

var starting = regexp.MustCompile(`Starting new server (\d+) `)

// shown are the lines of control.log that a transcript has: not the answers, which it has anyway.
var shown = regexp.MustCompile(`^(Starting new|NEW SERVER|NEW CLIENT|Server (\S+ exited|encountered)|Exit with|quit command|Force)`)

// logged takes down what was added to control.log, up to a line with the given words, for which it waits.
func (s *stage) logged(words string) {
	s.t.Helper()
	s.until("a line "+words, func() bool {
		text, _ := os.ReadFile(filepath.Join(s.log, "control.log"))
		rest := string(text[min(s.read, len(text)):])
		for _, m := range starting.FindAllStringSubmatch(rest, -1) {
			if s.names[m[1]] == "" {
				s.name("S", m[1]) // it may end before the list has it
			}
		}
		if !strings.Contains(s.named(rest), words) || !strings.HasSuffix(rest, "\n") {
			return false
		}
		for line := range strings.Lines(rest) {
			s.read += len(line)
			_, line, _ = strings.Cut(strings.TrimSpace(line), "] ")
			line = s.named(line)
			if shown.MatchString(line) {
				s.writef("log: %s", line)
			}
			if strings.Contains(line, words) {
				return true
			}
		}
		return true
	})
}

// files takes down what lies in the pipe directory.
func (s *stage) files() {
	s.t.Helper()
	for _, e := range must.Get(os.ReadDir(s.pipe))(s.t) {
		info, err := e.Info()
		must.OK(s.t, err)
		s.writef("file: %v %s", info.Mode(), e.Name())
	}
}

// peer is the process that listens at `control`; 0 = nobody does.
func (s *stage) peer() int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must.OK(s.t, err)
	defer unix.Close(fd)
	if unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(s.pipe, "control")}) != nil {
		return 0
	}
	c, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	must.OK(s.t, err)
	return int(c.Pid)
}

// gone waits for the daemon's end, and until nobody listens at its socket.
func (s *stage) gone() {
	s.t.Helper()
	s.until("the end of the daemon", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.daemon))
		return (err != nil || strings.Contains(string(stat), ") Z ")) && s.peer() == 0
	})
	s.writef("# nobody listens at control")
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	text := []byte("a device, not a file")
	if info, err := os.Stat(filepath.Join(s.log, "control.log")); err == nil && info.Mode().IsRegular() {
		text, _ = os.ReadFile(filepath.Join(s.log, "control.log"))
	}
	s.t.Fatalf("not in time: %s; so far:\n%s\ncontrol.log:\n%s", what, s.out.String(), text[max(0, len(text)-2000):])
}
