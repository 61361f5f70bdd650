package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/prolog/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// mostText is how much of a file is read.
const mostText = 1 << 20

// Ask runs one of Slurm's commands and returns what it printed.
type Ask func(ctx context.Context, program string, args ...string) (string, error)

// Collect gathers the facts that this machine has: Slurm's answers, and the
// files it names. bridge is the user that the bridge runs as. It fails only when ctx ends:
// what can't be found out is left out.
func Collect(ctx context.Context, ask Ask, settings *config.Config, bridge string) (*Facts, error) {
	f := &Facts{Settings: settings, User: bridge}
	show := func(what ...string) string {
		out, err := ask(ctx, "scontrol", append([]string{"show"}, what...)...)
		if err != nil {
			return ""
		}
		return out
	}
	if out := show("config"); out != "" {
		f.Config = text.ParseConfig([]byte(out))
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("collect facts: %w", err)
	}
	if f.Config == nil {
		return f, nil
	}
	f.Nodes = text.ParseNodes([]byte(show("nodes", "-o")))
	f.Partitions = text.ParsePartitions([]byte(show("partitions", "-o")))
	f.Federation, _ = text.Federation([]byte(show("federation")))
	askAccounting(ctx, ask, f)
	askRequests(ctx, ask, f)
	if conf := f.Config["SLURM_CONF"]; conf != "" {
		if _, err := os.Stat(conf); err == nil {
			f.ConfDir = filepath.Dir(conf)
			f.GresConf = readFile(filepath.Join(f.ConfDir, "gres.conf"))
			f.Namespaces = readFile(filepath.Join(f.ConfDir, "job_container.conf"))
			if strings.HasSuffix(f.Config["NamespaceType"], "/linux") {
				f.Namespaces = readFile(filepath.Join(f.ConfDir, "namespace.yaml"))
			}
			f.JobSubmitLua = readFile(filepath.Join(f.ConfDir, "job_submit.lua"))
			f.PackagedLua = readFile(PackagedLua)
		}
	}
	f.Hooks = hooks(f.Config)
	f.Folders = map[string]bool{}
	for _, file := range []string{settings.GateFile, settings.WakeFile, settings.Database} {
		dir := filepath.Dir(file)
		info, err := os.Stat(dir)
		f.Folders[dir] = err == nil && info.IsDir()
	}
	socket := settings.MungeSocket
	if socket == "" {
		socket = mungeSocket
	}
	_, err := os.Stat(socket)
	there := err == nil
	f.MungeSocket = &there
	if settings.KeyFile != "" {
		wrong := tryKey(settings.KeyFile, bridge)
		f.Key = &wrong
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("collect facts: %w", err)
	}
	return f, nil
}

// tryKey says what is wrong with a key file for a user, "" = nothing.
func tryKey(file, name string) string {
	uid, gid := os.Geteuid(), os.Getegid()
	if u, err := user.Lookup(name); err == nil {
		theirUID, err1 := strconv.Atoi(u.Uid)
		theirGID, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil {
			uid, gid = theirUID, theirGID
		}
	}
	if _, err := credential.ReadKeysAs(file, uint32(uid), uint32(gid)); err != nil {
		return err.Error()
	}
	return ""
}

// mungeSocket is where munged listens by default.
const mungeSocket = "/run/munge/munge.socket.2"

// Hook is a file that one of Slurm's hook settings comes down to.
type Hook struct {
	File string // as the setting has it, where this machine doesn't have the file
	Seen bool   // on this machine
	Ours bool   // it is slurmbridge's, a link to one of these, or a script that names one
}

// hooks finds the files that the hook settings come down to.
func hooks(conf map[string]string) map[string][]Hook {
	out := map[string][]Hook{}
	for _, name := range []string{"Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld"} {
		for pattern := range strings.SplitSeq(conf[name], ",") {
			if pattern == "" {
				continue
			}
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) == 0 {
				files = []string{pattern}
			}
			for _, file := range files {
				h := Hook{File: file, Ours: ours(file)}
				// A link may have any name; its target counts.
				if to, err := filepath.EvalSymlinks(file); err == nil {
					text, err := os.ReadFile(to)
					h.Seen, h.Ours = err == nil, h.Ours || ours(to) || namesOurs.Match(text)
				}
				out[name] = append(out[name], h)
			}
		}
	}
	return out
}

func ours(path string) bool { return strings.Contains(path, "slurmbridge") }

// namesOurs matches a line of a script that calls a hook of ours.
var namesOurs = regexp.MustCompile(`(?m)^[^#\n]*/slurmbridge(/(task)?prolog|/epilog|-hook)`)

// readFile returns the text of a file, or nil where there is none. A file that
// is there and can't be read is taken for empty.
func readFile(name string) *string {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	s := string(b[:min(len(b), mostText)])
	return &s
}

// Facts is everything Examine looks at. A field that could not be found out is
// left nil, and nothing is then said about it.
type Facts struct {
	// Config is slurmctld's configuration; nil = it did not answer.
	Config     map[string]string
	Nodes      []text.Node
	Partitions []text.Partition
	// GresConf, JobSubmitLua and Namespaces (job_container.conf or namespace.yaml) are the texts of the files next to
	// slurm.conf; nil = there is none. They are read only if ConfDir is set.
	GresConf, JobSubmitLua, Namespaces *string
	// Federation is the one that the cluster is in, "" = none.
	Federation string
	// ConfDir is the folder of slurm.conf, where this machine has it.
	ConfDir string
	// Hooks lists the files that Prolog, Epilog, TaskProlog and EpilogSlurmctld
	// come down to on this machine, by setting.
	Hooks map[string][]Hook
	// Folders says of each folder the bridge writes to whether it is there.
	Folders map[string]bool
	// MungeSocket says whether munged's socket is there.
	MungeSocket *bool
	// Munge is what went wrong with a credential made and read here; "" = nothing,
	// nil = not tried.
	Munge *string
	// Key is what is wrong with the key file for User; "" = nothing, nil = none is set.
	Key *string
	// Token is what went wrong with one of Slurm's own tokens made and read here; "" = nothing,
	// nil = not tried.
	Token *string
	// User is the user that the bridge runs as.
	User string
	// Account says whether User has an account; nil = not known.
	Account *bool
	// Limits are accounting's on what several jobs have together.
	Limits []Limit
	// Requests are the last week's jobs of one GPU, as accounting knows them.
	Requests []Request
	// Daemon is the answer of the running daemon; nil = not requested.
	Daemon *Daemon
	// PackagedLua is the job_submit.lua that is installed with the programs; nil =
	// there is none.
	PackagedLua *string
	// Agents holds the answers of the nodes' agents, by node; nil = not requested.
	Agents map[string]Agent
	// Settings are the bridge's own; they are always there.
	Settings *config.Config
}

// Agent is what a node's agent said.
type Agent struct {
	Err string // why it can't be reached, "" = it can
	// Locked says why what it says can't be read: TLS, a password; "" = it can.
	Locked string
	Sick   string // what it says is wrong with it, "" = nothing
	// Ahead is the node's clock less this machine's.
	Ahead time.Duration
	// MPS says whether the node has nvidia-cuda-mps-control; nil = not known.
	MPS *bool
	// NoLimits says that the node's driver is too old to hold MPS clients to a part of the memory of a card that could;
	// nil = not known.
	NoLimits *bool
	// Modes are the compute modes of the node's GPUs, and Uncertain is how many of Slurm's GPUs the hooks don't know.
	Modes     []string
	Uncertain int
	// Hooks says whether the settings of the node's hooks make sense; nil = not known.
	Hooks *bool
}
