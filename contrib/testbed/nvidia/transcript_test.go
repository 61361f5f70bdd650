package nvidia

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/mps"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// transcripts is what NVIDIA's own control daemons were seen to do, a file for each situation. A line > COMMAND is what
// is done with nvidia-cuda-mps-control, and one # WORDS what is done besides. The lines that follow are what is seen of
// it: log: LINE is one of control.log. S1 and C1 stand for the first server and the first client.
const transcripts = "testdata/transcripts"

// only is what a transcript's line begins with where not all releases have it: "535..", "..535" or "550..550".
var only = regexp.MustCompile(`^(\d*)\.\.(\d*) `)

// of is a transcript as a driver has it.
func of(transcript, driver string) (lines []string) {
	for line := range strings.SplitSeq(strings.TrimSpace(transcript), "\n") {
		if m := only.FindStringSubmatch(line); m != nil {
			if driver < m[1] || m[2] != "" && driver > m[2] {
				continue
			}
			line = line[len(m[0]):]
		}
		lines = append(lines, line)
	}
	return lines
}

// The simulated control daemon does what NVIDIA's own were seen to do, in the words of these.
func TestTranscripts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: servers of several users")
	}
	t.Run("simulated", func(t *testing.T) {
		for _, name := range Drivers {
			play(t, Driver{Name: name})
		}
	})
	for _, d := range Fetched(t) {
		play(t, d)
	}
}

// play does what the transcripts say on a driver's daemon, and compares what is seen.
func play(t *testing.T, d Driver) {
	for _, file := range must.Get(filepath.Glob(transcripts + "/*.txt"))(t) {
		t.Run(d.Name+" "+strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			s, want := newStage(t, d), of(string(must.Get(os.ReadFile(file))(t)), d.Name)
			for i, line := range want {
				kind, what, _ := strings.Cut(line, " ")
				switch {
				case kind == ">":
					s.command(what)
				case kind == "#":
					s.seen = append(s.seen, line)
					s.event(what)
				case kind == "log:" && (i+1 == len(want) || !strings.HasPrefix(want[i+1], kind)):
					s.logged(what)
				}
			}
			if diff := cmp.Diff(want, s.seen); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

// command gives the daemon a command, or starts it.
func (s *stage) command(text string) {
	s.t.Helper()
	args, starts := strings.CutPrefix(text, "nvidia-cuda-mps-control ")
	if !starts {
		s.run(text, s.numbered(text)+"\n")
		return
	}
	s.env = append(s.env, ServerEnv+"="+s.mode)
	if s.simulated && s.mode == Starts {
		s.env = append(s.env, mps.InitEnv+"=1h")
	}
	if s.simulated {
		st := must.Get(gpusim.Open(filepath.Join(s.dir, "state")))(s.t)
		must.OK(s.t, st.Devices()[0].SetLost(s.mode == Fails), st.Close())
	}
	s.run(text, "", strings.Fields(args)...)
	if pid := s.peer(); pid > 0 {
		delete(s.names, strconv.Itoa(s.daemon))
		s.daemon = pid
		s.names[strconv.Itoa(pid)] = "DAEMON"
	}
}

// event does what a transcript's line says.
func (s *stage) event(text string) {
	s.t.Helper()
	switch text { // before the daemon starts
	case "servers are ready":
		s.mode = Ready
	case "servers fail":
		s.mode = Fails
	case "PATH=/nonexistent":
		s.env = append(s.env, text)
	case "control.log is /dev/full":
		must.OK(s.t, os.Symlink("/dev/full", filepath.Join(s.log, "control.log")))
	case "no folders":
		must.OK(s.t, os.Remove(s.pipe), os.Remove(s.log))
	case "a file for a pipe directory":
		must.OK(s.t, os.Remove(s.pipe), os.WriteFile(s.pipe, nil, 0o600))
	case "a pipe directory of a long name":
		s.pipe = filepath.Join(s.dir, strings.Repeat("x", 100))
		s.env = append(s.env, "CUDA_MPS_PIPE_DIRECTORY="+s.pipe)
		must.OK(s.t, os.Mkdir(s.pipe, 0o755))
	case "files":
		s.files()
	case "nobody listens at control":
		s.until("the end of the daemon", func() bool {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(s.daemon) + "/stat")
			return (err != nil || strings.Contains(string(stat), ") Z ")) && s.peer() == 0
		})
	case "a client is silent":
		s.silent()
	default:
		words := strings.Fields(text)
		name := words[0]
		switch does := words[1]; does {
		case "starts":
			must.Equal(s.t, s.server(), name)
		case "lives":
			must.OK(s.t, syscall.Kill(s.pid(name), 0))
		case "gets":
			must.OK(s.t, syscall.Kill(s.pid(name), unix.SignalNum(words[2])))
		case "of": // a user comes
			must.Equal(s.t, s.knock(must.Get(strconv.Atoi(words[3]))(s.t)), name)
		case "is": // in
			must.Equal(s.t, <-s.clients[name].word, words[2], name)
		case "ends":
			must.OK(s.t, s.clients[name].in.Close(), s.clients[name].Wait())
		default:
			s.t.Fatal(text)
		}
	}
}

// ask returns what the daemon answers to a command that the transcript hasn't.
func (s *stage) ask(command string) *exec.Cmd {
	cmd := exec.Command(s.control)
	cmd.Env, cmd.Stdin = s.env, strings.NewReader(command+"\n")
	return cmd
}
