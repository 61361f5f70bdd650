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

// stage is where a transcript is played on a control daemon, NVIDIA's own or the simulated GPU's.
type stage struct {
	t              *testing.T
	simulated      bool
	control        string
	dir, pipe, log string
	env            []string
	mode           string            // of servers
	seen           []string          // lines of a transcript
	names          map[string]string // of processes by pid: S1, S2, C1
	read           int               // bytes of control.log that the transcript has
	daemon         int
	clients        map[string]*standIn
}

// standIn is a client; its word comes when it has a server, or is refused.
type standIn struct {
	*exec.Cmd
	in   io.Closer
	word chan string
}

// newStage makes the place for one daemon. d.folder is "" for a simulated one.
func newStage(t *testing.T, d Driver) *stage {
	t.Helper()
	// The sockets' paths must be short, and other users get in.
	dir := must.Get(os.MkdirTemp("", "mps"))(t)
	must.OK(t, os.Chmod(dir, 0o755))
	s := &stage{
		t: t, control: d.Control(), dir: dir, pipe: filepath.Join(dir, "pipe"), log: filepath.Join(dir, "log"),
		mode: Starts, names: map[string]string{}, clients: map[string]*standIn{},
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
			if err == nil && bytes.Contains(env, []byte("CUDA_MPS_LOG_DIRECTORY="+s.log+"\x00")) {
				pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
				again = syscall.Kill(pid, syscall.SIGKILL) == nil || again
			}
		}
	}
	_ = os.RemoveAll(s.dir)
}

// run runs the control program and takes down what it prints and its exit status.
func (s *stage) run(title, stdin string, args ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Minute)
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
	s.seen = append(s.seen, strings.TrimSpace("> "+title))
	lines := strings.Split(s.named(strings.TrimSuffix(string(out), "\n")), "\n")
	// The daemon lists clients and servers in an order of its own, which depends on their process IDs.
	if strings.HasPrefix(title, "get_client_list") || strings.HasPrefix(title, "get_server_list") {
		slices.Sort(lines)
	}
	if len(out) > 0 {
		s.seen = append(s.seen, lines...)
	}
	// That of quit is 0 or 1, as it happens, after a server has failed.
	if code := cmd.ProcessState.ExitCode(); code != 0 && !strings.HasPrefix(title, "quit") {
		s.seen = append(s.seen, fmt.Sprint("exit ", code))
	}
}

// server waits until the daemon has a server that isn't named yet, and names it.
func (s *stage) server() string {
	s.t.Helper()
	name := ""
	s.until("a server", func() bool {
		out, _ := s.ask("get_server_list").Output()
		for _, pid := range strings.Fields(string(out)) {
			if s.names[pid] == "" {
				name = s.name("S", pid)
			}
		}
		return name != ""
	})
	if !s.simulated && s.mode == Starts {
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
	cmd := s.ask("get_server_list")
	must.OK(s.t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case <-done:
		s.seen = append(s.seen, "answered")
	case <-time.After(300 * time.Millisecond):
		must.OK(s.t, c.Close(), <-done)
		s.seen = append(s.seen, "no answer", "answered when it has gone")
	}
}

// knock starts a client, and returns its name.
func (s *stage) knock(uid int) string {
	s.t.Helper()
	c := &standIn{Cmd: exec.Command(filepath.Join(bins[s.simulated], clientName)), word: make(chan string, 2)}
	c.Env, c.Dir = s.env, "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	c.in = must.Get(c.StdinPipe())(s.t)
	out := must.Get(c.StdoutPipe())(s.t)
	must.OK(s.t, c.Start())
	name := s.name("C", strconv.Itoa(c.Process.Pid))
	s.clients[name] = c
	time.AfterFunc(5*time.Minute, func() { c.word <- "not in time" })
	go func() {
		said, _ := bufio.NewReader(out).ReadString('\n')
		c.word <- strings.TrimSpace(said)
	}()
	return name
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
				s.seen = append(s.seen, "log: "+line)
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
		s.seen = append(s.seen, fmt.Sprintf("file: %v %s", info.Mode(), e.Name()))
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

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	text := []byte("a device, not a file")
	if info, err := os.Stat(filepath.Join(s.log, "control.log")); err == nil && info.Mode().IsRegular() {
		text, _ = os.ReadFile(filepath.Join(s.log, "control.log"))
	}
	s.t.Fatalf("not in time: %s; so far:\n%s\ncontrol.log:\n%s", what, strings.Join(s.seen, "\n"), text[max(0, len(text)-2000):])
}
