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

// Facts is the input of Examine. A nil field is unknown, and no check that reads it has a finding.
type Facts struct {
	Config     map[string]string // slurmctld's configuration; nil = it did not answer
	Nodes      []text.Node
	Partitions []text.Partition
	ConfDir    string // the folder of slurm.conf, "" = not on this machine
	// GresConf, JobSubmitLua and Namespaces (job_container.conf or namespace.yaml) are the texts of files in ConfDir,
	// PackagedLua is the text of the job_submit.lua that packages install; nil = the file does not exist.
	GresConf, JobSubmitLua, Namespaces, PackagedLua *string
	// Hooks lists the files that Prolog, Epilog, TaskProlog and EpilogSlurmctld name, by setting.
	Hooks map[string][]Hook
	// PlugStack are the lines of plugstack.conf, and of the files that it includes, without comments.
	PlugStack   []string
	Unread      []string // files of ConfDir that exist but can't be read
	Missing     []string // folders that the bridge writes to but that don't exist
	MungeSocket *bool    // whether munged's socket exists
	// Munge and Token are the errors of making and reading a MUNGE credential and one of Slurm's own tokens here. Key is
	// the error of reading the key file as User. "" = it worked, nil = not tried.
	Munge, Token, Key *string
	User              string // the user that the bridge runs as
	Account           *bool  // whether User has an account; nil = unknown
	QOS               *bool  // whether sacctmgr shows QOSes; nil = unknown
	Limits            []Limit
	Daemon            *Daemon          // the answer of the running daemon; nil = not requested
	Agents            map[string]Agent // the answers of the nodes' agents, by node; nil = not requested
	Settings          *config.Config   // the bridge's settings, never nil
}

// Limit is a limit in accounting on the sum of several jobs' resources.
type Limit struct {
	// Of is the object that has the limit, as sacctmgr modify takes it: "qos normal", "account lab where cluster=c".
	Of   string
	Name string // the option, e.g. "MaxTRESPerUser"
	TRES string // e.g. "cpu=8,gres/gpu=1"
}

// Hook is a file that one of Slurm's hook settings names.
type Hook struct {
	File string // the path; the setting's pattern if no file here matches it
	Seen bool   // whether this machine has the file
	Ours bool   // whether it is a hook of slurmbridge's, a link to one, or a script that calls one
}

// Ask runs one of Slurm's commands and returns what it printed.
type Ask func(ctx context.Context, program string, args ...string) (string, error)

// Collect gathers Slurm's answers, and reads the files that they name on this machine. bridge is the user that the
// bridge runs as. Facts that can't be read are left nil; the only error is that ctx has ended.
func Collect(ctx context.Context, ask Ask, settings *config.Config, bridge string) (*Facts, error) {
	f := &Facts{Settings: settings, User: bridge}
	// With -a scontrol shows cloud nodes even while they are off.
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

// readFiles reads the files that Slurm's and the bridge's settings name.
func (f *Facts) readFiles() {
	conf := f.Config["SLURM_CONF"]
	if conf != "" && exists(conf) {
		f.ConfDir = filepath.Dir(conf)
		namespaces := "job_container.conf"
		if strings.HasSuffix(f.Config["NamespaceType"], "/linux") {
			namespaces = "namespace.yaml"
		}
		f.GresConf = f.readFile("gres.conf")
		f.Namespaces = f.readFile(namespaces)
		f.JobSubmitLua = f.readFile("job_submit.lua")
		f.PackagedLua = f.readFile(PackagedLua)
	}
	f.Hooks = hooksOf(f.Config)
	if stack := f.Config["PlugStackConfig"]; filepath.IsAbs(stack) || f.ConfDir != "" {
		f.PlugStack = f.plugStack(cmp.Or(stack, "plugstack.conf"), mostIncludes)
	}
	for _, file := range []string{f.Settings.GateFile(), f.Settings.Database} {
		dir := filepath.Dir(file)
		if slices.Contains(unitFolders, dir) && exists(unitFile) {
			continue // systemd makes the folder when the daemon starts
		}
		if info, err := os.Stat(dir); (err != nil || !info.IsDir()) && !slices.Contains(f.Missing, dir) {
			f.Missing = append(f.Missing, dir)
		}
	}
	munge := exists(cmp.Or(f.Settings.MungeSocket, "/run/munge/munge.socket.2")) // munged's default
	f.MungeSocket = &munge
	if f.Settings.KeyFile != "" {
		problem := tryKey(f.Settings.KeyFile, f.User)
		f.Key = &problem
	}
}

// unitFile is the daemon's unit, as the package installs it.
const unitFile = "/usr/lib/systemd/system/slurmbridge.service"

// unitFolders are the folders that the unit has systemd make.
var unitFolders = []string{"/var/lib/slurmbridge", "/run/slurmbridge"}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// tryKey reads a key file as a user and returns the error's text, "" = it works.
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

// hooksOf finds the files that the hook settings name, with patterns expanded.
func hooksOf(conf map[string]string) map[string][]Hook {
	out := map[string][]Hook{}
	for _, name := range []string{"Prolog", "Epilog", "TaskProlog", "EpilogSlurmctld"} {
		for pattern := range strings.SplitSeq(conf[name], ",") {
			if pattern == "" {
				continue
			}
			if !filepath.IsAbs(pattern) { // a script that configless nodes receive with slurm.conf
				pattern = filepath.Join(filepath.Dir(conf["SLURM_CONF"]), pattern)
			}
			files, err := filepath.Glob(pattern)
			if err != nil || len(files) == 0 {
				files = []string{pattern}
			}
			for _, file := range files {
				h := Hook{File: file, Ours: ours(file)}
				// A link may have any name, so its target's name is checked, too.
				if to, err := filepath.EvalSymlinks(file); err == nil {
					text, err := os.ReadFile(to)
					h.Seen = err == nil
					h.Ours = h.Ours || ours(to) || callsOurs.Match(text)
				}
				out[name] = append(out[name], h)
			}
		}
	}
	return out
}

func ours(path string) bool { return strings.Contains(path, "slurmbridge") }

// callsOurs matches a line of a script that calls one of our hooks.
var callsOurs = regexp.MustCompile(`(?m)^[^#\n]*/slurmbridge(/(task)?prolog|/epilog|-hook)`)

// mostIncludes limits the depth of includes in plugstack.conf.
const mostIncludes = 3

// plugStack reads plugstack.conf, in the order in which Slurm loads the plugins (spank.c). file is relative to ConfDir.
func (f *Facts) plugStack(file string, deep int) (lines []string) {
	if !filepath.IsAbs(file) {
		file = filepath.Join(f.ConfDir, file)
	}
	for line := range strings.Lines(orEmpty(f.readFile(file))) {
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
			found, _ := filepath.Glob(pattern) // in a bad pattern Slurm finds no files either
			for _, other := range found {
				lines = append(lines, f.plugStack(other, deep-1)...)
			}
		}
	}
	return lines
}

// mostText limits the part of a file that is looked at, in bytes.
const mostText = 1 << 20

// readFile returns the text of a file, nil if it does not exist. name is relative to ConfDir. A file that exists but
// can't be read is noted in Unread.
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

// askAccounting reads the account of the bridge's user, and limits, from the accounting database.
func (f *Facts) askAccounting(ctx context.Context, ask Ask) {
	cluster := "cluster=" + f.Config["ClusterName"]
	if f.User != "" {
		accounts, ok := showAccounting(ctx, ask, 1, "assoc", cluster, "user="+f.User, "format=Account")
		if ok {
			has := len(accounts) > 0
			f.Account = &has
		}
	}
	qos, ok := showAccounting(ctx, ask, 4, "qos", "format=Name,GrpTRES,MaxTRESPA,MaxTRESPU")
	f.QOS = &ok
	for _, r := range qos {
		for i, name := range []string{"GrpTRES", "MaxTRESPerAccount", "MaxTRESPerUser"} {
			f.addLimit("qos "+r[0], name, r[1+i])
		}
	}
	assocs, _ := showAccounting(ctx, ask, 3, "assoc", cluster, "format=Account,User,GrpTRES")
	for _, r := range assocs {
		of := "account " + r[0] + " where " + cluster
		if r[1] != "" { // otherwise it is the account's own association
			of = "user " + r[1] + " where account=" + r[0] + " " + cluster
		}
		f.addLimit(of, "GrpTRES", r[2])
	}
}

func (f *Facts) addLimit(of, name, tres string) {
	if tres != "" {
		f.Limits = append(f.Limits, Limit{of, name, tres})
	}
}

// showAccounting returns the rows of sacctmgr's answer that have at least so many columns.
func showAccounting(ctx context.Context, ask Ask, columns int, args ...string) (rows [][]string, ok bool) {
	out, err := ask(ctx, "sacctmgr", append([]string{"-n", "-P", "show"}, args...)...)
	for line := range strings.Lines(out) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		if len(row) >= columns {
			rows = append(rows, row)
		}
	}
	return rows, err == nil
}
