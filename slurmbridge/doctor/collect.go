package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Facts is everything Examine looks at. A field that could not be found out is
// left nil, and nothing is then said about it.
type Facts struct {
	Config     map[string]string // slurmctld's configuration; nil = it did not answer
	Nodes      []text.Node
	Partitions []text.Partition
	ConfDir    string // the folder of slurm.conf, where this machine has it
	// GresConf, JobSubmitLua and Namespaces (job_container.conf or namespace.yaml) are the texts of the files in ConfDir,
	// PackagedLua that of the job_submit.lua that is installed with the programs; nil = there is none.
	GresConf, JobSubmitLua, Namespaces, PackagedLua *string
	// Hooks lists the files that Prolog, Epilog, TaskProlog and EpilogSlurmctld come down to on this machine, by setting.
	Hooks map[string][]Hook
	// PlugStack are the lines of plugstack.conf, and of the files that it includes, without comments.
	PlugStack   []string
	Unread      []string // files of ConfDir that are there and can't be read
	Missing     []string // folders that the bridge writes to and that aren't there
	MungeSocket *bool    // whether munged's socket is there
	// Munge and Token are what went wrong with a credential of MUNGE's, or one of Slurm's own tokens, made and read here,
	// and Key is what is wrong with the key file for User; "" = nothing, nil = not tried.
	Munge, Token, Key *string
	User              string // that the bridge runs as
	Account           *bool  // whether User has an account; nil = not known
	QOS               *bool  // whether sacctmgr shows QOSes; nil = not known
	Limits            []Limit
	Daemon            *Daemon          // the answer of the running daemon; nil = not requested
	Agents            map[string]Agent // the answers of the nodes' agents, by node; nil = not requested
	Settings          *config.Config   // the bridge's own; they are always there
}

// Limit is one of accounting's limits on what several jobs have together.
type Limit struct {
	// Of is what it is set on, as sacctmgr modify takes it: "qos normal", "account lab where cluster=c".
	Of   string
	Name string // the option, e.g. "MaxTRESPerUser"
	TRES string // e.g. "cpu=8,gres/gpu=1"
}

// Hook is a file that one of Slurm's hook settings comes down to.
type Hook struct {
	File string // as the setting has it, where this machine doesn't have the file
	Seen bool   // on this machine
	Ours bool   // it is slurmbridge's, a link to one of these, or a script that names one
}

// Ask runs one of Slurm's commands and returns what it printed.
type Ask func(ctx context.Context, program string, args ...string) (string, error)

// Collect gathers the facts that this machine has: Slurm's answers, and the files it names. bridge is the user that the
// bridge runs as. It fails only when ctx ends: what can't be found out is left out.
func Collect(ctx context.Context, ask Ask, settings *config.Config, bridge string) (*Facts, error) {
	f := &Facts{Settings: settings, User: bridge}
	// With -a nodes of the cloud are shown while they are off, too.
	show := func(args ...string) []byte {
		out, err := ask(ctx, "scontrol", args...)
		if err != nil {
			return nil
		}
		return []byte(out)
	}
	if out := show("show", "config"); out != nil {
		f.Config = text.ParseConfig(out)
		f.Nodes = text.ParseNodes(show("-o", "-a", "show", "nodes"))
		f.Partitions = text.ParsePartitions(show("-o", "-a", "show", "partitions"))
		if database(f) {
			f.askAccounting(ctx, ask)
		}
		f.readFiles()
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("collect facts: %w", err)
	}
	return f, nil
}

// readFiles adds what the files say that Slurm's and the bridge's settings name.
func (f *Facts) readFiles() {
	conf := f.Config["SLURM_CONF"]
	if _, err := os.Stat(conf); conf != "" && err == nil {
		f.ConfDir = filepath.Dir(conf)
		namespaces := "job_container.conf"
		if strings.HasSuffix(f.Config["NamespaceType"], "/linux") {
			namespaces = "namespace.yaml"
		}
		f.GresConf, f.Namespaces = f.readFile("gres.conf"), f.readFile(namespaces)
		f.JobSubmitLua, f.PackagedLua = f.readFile("job_submit.lua"), f.readFile(PackagedLua)
	}
	f.Hooks = hooksOf(f.Config)
	if stack := f.Config["PlugStackConfig"]; filepath.IsAbs(stack) || f.ConfDir != "" {
		f.PlugStack = f.plugStack(cmp.Or(stack, "plugstack.conf"), mostIncludes)
	}
	for _, file := range []string{f.Settings.GateFile, f.Settings.WakeFile, f.Settings.Database} {
		dir := filepath.Dir(file)
		if slices.Contains(unitFolders, dir) && installed(unitFile) {
			continue // systemd makes it when the daemon starts
		}
		if info, err := os.Stat(dir); (err != nil || !info.IsDir()) && !slices.Contains(f.Missing, dir) {
			f.Missing = append(f.Missing, dir)
		}
	}
	_, err := os.Stat(cmp.Or(f.Settings.MungeSocket, "/run/munge/munge.socket.2")) // where munged listens by default
	there := err == nil
	f.MungeSocket = &there
	if f.Settings.KeyFile != "" {
		wrong := tryKey(f.Settings.KeyFile, f.User)
		f.Key = &wrong
	}
}

// unitFile is the daemon's unit, as the package installs it, unitFolders what it has systemd make.
const unitFile = "/usr/lib/systemd/system/slurmbridge.service"

var unitFolders = []string{"/var/lib/slurmbridge", "/run/slurmbridge"}

func installed(file string) bool {
	_, err := os.Stat(file)
	return err == nil
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

// hooksOf finds the files that the hook settings come down to.
func hooksOf(conf map[string]string) map[string][]Hook {
	out := map[string][]Hook{}
	for _, name := range []string{"Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld"} {
		for pattern := range strings.SplitSeq(conf[name], ",") {
			if pattern == "" {
				continue
			}
			if !filepath.IsAbs(pattern) { // a script that configless nodes get with slurm.conf
				pattern = filepath.Join(filepath.Dir(conf["SLURM_CONF"]), pattern)
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

// mostIncludes is how deep files of plugstack.conf include each other.
const mostIncludes = 3

// plugStack reads plugstack.conf, by its path from ConfDir, in the order in which Slurm loads its plugins (spank.c).
func (f *Facts) plugStack(file string, deep int) (lines []string) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(f.ConfDir, file)
	}
	for line := range strings.Lines(wrong(f.readFile(file))) {
		words := strings.Fields(line)
		switch {
		case len(words) < 2 || strings.HasPrefix(words[0], "#"):
		case words[0] != "include":
			lines = append(lines, strings.Join(words, " "))
		case deep > 0:
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			found, _ := filepath.Glob(pattern) // a pattern that is wrong has no files for Slurm either
			for _, other := range found {
				lines = append(lines, f.plugStack(other, deep-1)...)
			}
		}
	}
	return lines
}

// mostText is how much of a file is read.
const mostText = 1 << 20

// readFile returns the text of a file, by its path from ConfDir, or nil where there is none. One that is there and
// can't be read is noted.
func (f *Facts) readFile(name string) *string {
	if !filepath.IsAbs(name) {
		name = filepath.Join(f.ConfDir, name)
	}
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		f.Unread = append(f.Unread, name)
	}
	s := string(b[:min(len(b), mostText)])
	return &s
}

// askAccounting adds what the database knows of the bridge's user and of limits.
func (f *Facts) askAccounting(ctx context.Context, ask Ask) {
	// show returns the rows of sacctmgr's answer; each has at least so many columns.
	show := func(columns int, args ...string) (rows [][]string, ok bool) {
		out, err := ask(ctx, "sacctmgr", append([]string{"-n", "-P", "show"}, args...)...)
		for line := range strings.Lines(out) {
			if row := strings.Split(strings.TrimSuffix(line, "\n"), "|"); len(row) >= columns {
				rows = append(rows, row)
			}
		}
		return rows, err == nil
	}
	limit := func(of, name, tres string) {
		if tres != "" {
			f.Limits = append(f.Limits, Limit{of, name, tres})
		}
	}
	cluster := "cluster=" + f.Config["ClusterName"]
	if f.User != "" {
		if rows, ok := show(1, "assoc", cluster, "user="+f.User, "format=Account"); ok {
			has := len(rows) > 0
			f.Account = &has
		}
	}
	qos, ok := show(4, "qos", "format=Name,GrpTRES,MaxTRESPA,MaxTRESPU")
	f.QOS = &ok
	for _, r := range qos {
		for i, name := range []string{"GrpTRES", "MaxTRESPerAccount", "MaxTRESPerUser"} {
			limit("qos "+r[0], name, r[1+i])
		}
	}
	assocs, _ := show(3, "assoc", cluster, "format=Account,User,GrpTRES")
	for _, r := range assocs {
		of := "account " + r[0] + " where " + cluster
		if r[1] != "" { // otherwise the account's own
			of = "user " + r[1] + " where account=" + r[0] + " " + cluster
		}
		limit(of, "GrpTRES", r[2])
	}
}
