package nvidia

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// situation is what a control daemon meets, and the transcript of what it was seen to do.
type situation struct {
	name string
	do   func(s *stage)
	want string
}

// serve has a server started and waits until its daemon has it.
func (s *stage) serve(mode string) {
	s.t.Helper()
	s.start(mode)
	s.say("start_server -uid 0")
	s.server()
}

// fail has a server started that ends before it serves.
func (s *stage) fail(mode string) {
	s.t.Helper()
	s.start(mode)
	s.say("start_server -uid 0")
	s.logged("exited with")
	s.say("get_server_list")
}

// quit ends the daemon.
func (s *stage) quit() {
	s.t.Helper()
	s.say("quit")
	s.gone()
	s.logged("Exit with status")
}

var situations = []situation{
	{"start and end", func(s *stage) {
		s.say("get_server_list")
		s.start(Starts)
		s.files()
		s.start(Starts)
		s.say("get_server_list")
		s.say("quit")
		s.gone()
		s.files()
		s.logged("Exit with status")
		s.start(Starts)
	}, `
		> get_server_list
		Cannot find MPS control daemon process
		exit 1
		> nvidia-cuda-mps-control -d
		file: Srw-rw-rw- control
		file: -rw-rw-rw- control_lock
		file: Srwxr-xr-x control_privileged
		file: prwxrwxrwx log
		550.. file: -rw-rw-rw- nvidia-cuda-mps-control.pid
		> nvidia-cuda-mps-control -d
		An instance of this daemon is already running
		exit 1
		> get_server_list
		> quit
		# nobody listens at control
		file: Srw-rw-rw- control
		file: -rw-rw-rw- control_lock
		file: Srwxr-xr-x control_privileged
		log: Exit with status 0
		> nvidia-cuda-mps-control -d
	`},
	{"commands", func(s *stage) {
		s.start(Starts)
		s.say(
			"", "nonsense", "get_server_status", "get_server_status 1", "get_client_list", "get_client_list 1", "start_server",
			"start_server -uid abc", "start_server 5", "shutdown_server 1", "shutdown_server", "terminate_client",
			"terminate_client 1 1",
			"get_default_active_thread_percentage", "quit -t",
		)
		s.gone()
	}, `
		> nvidia-cuda-mps-control -d
		> 
		Unknown command ""
		> nonsense
		Unknown command "nonsense"
		> get_server_status
		..535 Unknown command "get_server_status"
		550.. A server PID is required
		> get_server_status 1
		..535 Unknown command "get_server_status"
		550.. Server 1 not found
		> get_client_list
		Server 0 not found
		> get_client_list 1
		Server 1 not found
		> start_server
		A user id (UID) is required to start a new server
		> start_server -uid abc
		A user id (UID) is required to start a new server
		> start_server 5
		A user id (UID) is required to start a new server
		> shutdown_server 1
		Server 1 not found
		> shutdown_server
		Server 0 not found
		> terminate_client
		..470 Unknown command "terminate_client"
		535.. Server 0 not found
		535.. Server 0 not found!
		535.. 1
		> terminate_client 1 1
		..470 Unknown command "terminate_client"
		535.. Server 1 not found
		535.. Server 1 not found!
		535.. 1
		> get_default_active_thread_percentage
		100.0
		> quit -t
		# nobody listens at control
	`},
	{"a server initialises", func(s *stage) {
		s.serve(Starts)
		s.say("get_server_list", "get_server_status S1", "get_client_list S1")
		s.say("start_server -uid 0", "get_server_list", "quit -t 1")
		s.gone()
		s.logged("Exit with status")
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		> get_server_list
		S1
		> get_server_status S1
		..535 Unknown command "get_server_status"
		550.. INITIALIZING
		> get_client_list S1
		> start_server -uid 0
		> get_server_list
		S1
		> quit -t 1
		# nobody listens at control
		log: Starting new server S1 for user 0
		535.. log: quit command issued with timeout of 1
		550.. log: Force shutting down server S1
		log: Server S1 exited with status 0
		log: Exit with status 0
	`},
	{"a signal ends a server", func(s *stage) {
		s.start(Starts)
		for i, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGABRT} {
			s.say("start_server -uid 0")
			s.server()
			s.signal("S"+strconv.Itoa(i+1), signal)
			s.logged("exited with")
		}
		s.say("get_server_list")
		s.say("quit")
		s.gone()
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		# S1 gets SIGKILL
		log: Starting new server S1 for user 0
		log: Server S1 exited with status 0
		> start_server -uid 0
		# S2 gets SIGTERM
		log: Starting new server S2 for user 0
		log: Server S2 exited with status 0
		> start_server -uid 0
		# S3 gets SIGSEGV
		log: Starting new server S3 for user 0
		log: Server S3 exited with status 0
		> start_server -uid 0
		# S4 gets SIGABRT
		log: Starting new server S4 for user 0
		log: Server S4 exited with status 0
		> get_server_list
		> quit
		# nobody listens at control
	`},
	{"a server serves", func(s *stage) {
		s.serve(Ready)
		s.logged("Ready")
		s.say("get_server_status S1", "get_client_list S1", "start_server -uid 0", "get_server_list", "shutdown_server S1")
		s.logged("exited with")
		s.say("get_server_list")
		s.quit()
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		log: Starting new server S1 for user 0
		log: NEW SERVER S1: Ready
		> get_server_status S1
		..535 Unknown command "get_server_status"
		550.. ACTIVE
		> get_client_list S1
		> start_server -uid 0
		> get_server_list
		S1
		> shutdown_server S1
		log: Server S1 exited with status 0
		> get_server_list
		> quit
		# nobody listens at control
		log: Exit with status 0
	`},
	{"a server fails at its start", func(s *stage) {
		s.fail(Fails)
		s.quit()
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		log: Starting new server S1 for user 0
		log: Server encountered a fatal exception. Shutting down
		log: Server S1 exited with status 1
		> get_server_list
		> quit
		# nobody listens at control
		log: Exit with status 1
	`},
	{"no server on the PATH", func(s *stage) {
		s.env = append(s.env, "PATH=/nonexistent")
		s.fail(Starts)
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		log: Starting new server S1 for user 0
		log: Server S1 exited with status 1
		> get_server_list
	`},
	{"clients", func(s *stage) {
		s.start(Ready)
		first, in := s.enter(0)
		s.server()
		s.enter(0)
		s.say("get_client_list S1")
		s.leave(first, in)
		s.say("terminate_client S1 C2", "terminate_client S1 1", "terminate_client S1 99999999", "terminate_client S1")
		s.logged("already exists")
	}, `
		> nvidia-cuda-mps-control -d
		# C1 of user 0 is in
		# C2 of user 0 is in
		> get_client_list S1
		C1
		C2
		# C1 ends
		> terminate_client S1 C2
		..470 Unknown command "terminate_client"
		535.. 0
		> terminate_client S1 1
		..470 Unknown command "terminate_client"
		535.. 1
		> terminate_client S1 99999999
		..470 Unknown command "terminate_client"
		535.. Invalid process 99999999!
		535.. 1
		> terminate_client S1
		..470 Unknown command "terminate_client"
		535.. Invalid process 0!
		535.. 1
		log: NEW CLIENT C1 from user 0: Server is not ready, push client to pending list
		log: Starting new server S1 for user 0
		log: NEW SERVER S1: Ready
		log: NEW CLIENT C2 from user 0: Server already exists
	`},
	{"two users", func(s *stage) {
		s.start(Ready)
		first, in := s.enter(1000)
		s.server()
		_, _, word := s.knock(1001)
		s.logged("NEW CLIENT C2")
		s.say("get_server_list")
		s.leave(first, in)
		s.writef("# C2 of user 1001 is %s", <-word)
		s.server()
		s.logged("S2: Ready")
		s.say("get_server_list")
	}, `
		> nvidia-cuda-mps-control -d
		# C1 of user 1000 is in
		log: NEW CLIENT C1 from user 1000: Server is not ready, push client to pending list
		log: Starting new server S1 for user 1000
		log: NEW SERVER S1: Ready
		log: NEW CLIENT C2 from user 1001: Server is not ready, push client to pending list
		> get_server_list
		S1
		# C1 ends
		# C2 of user 1001 is in
		log: Server S1 exited with status 0
		log: Starting new server S2 for user 1001
		log: NEW SERVER S2: Ready
		> get_server_list
		S2
	`},
	{"a server for another user", func(s *stage) {
		s.serve(Ready)
		s.logged("S1: Ready")
		s.say("start_server -uid 1000")
		s.logged("S2: Ready")
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		log: Starting new server S1 for user 0
		log: NEW SERVER S1: Ready
		> start_server -uid 1000
		log: Server S1 exited with status 0
		log: Starting new server S2 for user 1000
		log: NEW SERVER S2: Ready
	`},
	{"one server for all users", func(s *stage) {
		s.start(Ready, "-multiuser-server")
		if s.daemon == 0 {
			return
		}
		s.enter(1000)
		s.server()
		s.enter(1001)
		s.say("get_client_list S1")
		s.say("start_server -uid 1002")
		s.say("get_server_list")
		s.logged("already exists")
	}, `
		> nvidia-cuda-mps-control -d -multiuser-server
		..550 Cannot find MPS control daemon process
		..550 exit 1
		555.. # C1 of user 1000 is in
		555.. # C2 of user 1001 is in
		555.. > get_client_list S1
		555.. C1
		555.. C2
		555.. > start_server -uid 1002
		555.. > get_server_list
		555.. S1
		555.. log: NEW CLIENT C1 from user 0: Server is not ready, push client to pending list
		555.. log: Starting new server S1 for user 0
		555.. log: NEW SERVER S1: Ready
		555.. log: NEW CLIENT C2 from user 0: Server already exists
	`},
	{"a signal ends the daemon", func(s *stage) {
		for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			s.serve(Starts)
			s.signal("DAEMON", signal)
			s.gone()
			s.say("get_server_list")
		}
		s.files()
		s.writef("# S1 is there: %v", syscall.Kill(s.pid("S1"), 0) == nil)
		s.start(Starts)
		s.say("get_server_list")
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		# DAEMON gets SIGKILL
		# nobody listens at control
		> get_server_list
		Cannot find MPS control daemon process
		exit 1
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		# DAEMON gets SIGTERM
		# nobody listens at control
		> get_server_list
		Cannot find MPS control daemon process
		exit 1
		file: Srw-rw-rw- control
		file: -rw-rw-rw- control_lock
		file: Srwxr-xr-x control_privileged
		file: prwxrwxrwx log
		550.. file: -rw-rw-rw- nvidia-cuda-mps-control.pid
		# S1 is there: true
		> nvidia-cuda-mps-control -d
		> get_server_list
	`},
	{"a client says nothing", func(s *stage) { s.start(Starts); s.silent() }, `
		> nvidia-cuda-mps-control -d
		# beside a silent client: no answer
		# when it has gone: answered
	`},
	{"a full disk for the log", func(s *stage) {
		must.OK(s.t, os.Symlink("/dev/full", filepath.Join(s.log, "control.log")))
		s.serve(Starts)
		s.say("get_server_list")
	}, `
		> nvidia-cuda-mps-control -d
		> start_server -uid 0
		> get_server_list
		S1
	`},
	{"no folders", func(s *stage) {
		must.OK(s.t, os.Remove(s.pipe), os.Remove(s.log))
		s.start(Starts)
		s.say("get_server_list")
	}, `
		> nvidia-cuda-mps-control -d
		> get_server_list
	`},
	{"a file for a pipe directory", func(s *stage) {
		must.OK(s.t, os.Remove(s.pipe), os.WriteFile(s.pipe, nil, 0o600))
		s.start(Starts)
	}, `
		> nvidia-cuda-mps-control -d
		Cannot access CUDA_MPS_PIPE_DIRECTORY=DIR/pipe
		exit 1
	`},
	{"a path too long for a socket", func(s *stage) {
		s.move(filepath.Join(s.dir, strings.Repeat("x", 100)))
		s.start(Starts)
		s.say("get_server_list")
	}, `
		> nvidia-cuda-mps-control -d
		exit 1
		> get_server_list
		Cannot find MPS control daemon process
		exit 1
	`},
}

// only is what a transcript's line begins with where not all releases have it: "535..", "..535" or "550..550".
var only = regexp.MustCompile(`^(\d*)\.\.(\d*) `)

// of is a transcript as a driver has it.
func of(transcript, driver string) string {
	var out strings.Builder
	for line := range strings.Lines(transcript) {
		line = strings.TrimLeft(line, "\t")
		if m := only.FindStringSubmatch(line); m != nil {
			if driver < m[1] || m[2] != "" && driver > m[2] {
				continue
			}
			line = line[len(m[0]):]
		}
		out.WriteString(line)
	}
	return strings.TrimSpace(out.String())
}

// The simulated control daemon does what NVIDIA's own were seen to do, in the words of these.
func TestTranscripts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: servers of several users")
	}
	t.Run("simulated", func(t *testing.T) {
		for _, name := range Drivers {
			transcripts(t, Driver{Name: name})
		}
	})
	for _, d := range Fetched(t) {
		transcripts(t, d)
	}
}

func transcripts(t *testing.T, d Driver) {
	for _, sit := range situations {
		t.Run(d.Name+" "+sit.name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, d)
			sit.do(s)
			if diff := cmp.Diff(of(sit.want, d.Name), strings.TrimSpace(s.out.String())); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}
