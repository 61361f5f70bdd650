package slurmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// MissingAccounting says what this machine lacks to run a cluster with accounting,
// nil = nothing. Slurm's own programs are looked for in root.
func MissingAccounting(root string) error {
	for _, p := range []struct{ root, prog string }{
		{root, "slurmdbd"}, {root, "sacctmgr"}, {"", "mariadbd"},
	} {
		if _, err := findProgram(p.root, p.prog); err != nil {
			return fmt.Errorf("%s is missing: contrib/install-deps --accounting", p.prog)
		}
	}
	return nil
}

const slurmdbdConf = `AuthType=auth/munge
AuthInfo=socket=DIR/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort=PORT
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
LogFile=DIR/log/slurmdbd.log
PidFile=DIR/run/slurmdbd.pid
`

// startAccounting starts a MariaDB and a slurmdbd of the cluster's own, and makes the cluster known there. The database
// listens on a socket in a folder that only SlurmUser may enter, without a password.
func (c *Cluster) startAccounting(ctx context.Context) error {
	if err := MissingAccounting(c.Options.Root); err != nil {
		return err
	}
	data, socket := c.Path("db", "data"), c.Path("db", "socket")
	if err := c.mariadb(ctx, data, socket); err != nil {
		return err
	}
	conf := strings.NewReplacer("DIR", c.Dir, "PORT", c.dbdPort).Replace(slurmdbdConf)
	if err := own(c.Path("slurmdbd.conf"), []byte(conf), "slurm"); err != nil {
		return err
	}
	cmd, err := c.Command(context.Background(), "slurm", "slurmdbd", "-D")
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Env, "MYSQL_UNIX_PORT="+socket) // the default is the system's own
	if err := c.serve(ctx, "slurmdbd", cmd, func() error {
		_, err := c.Run(ctx, "sacctmgr", "-n", "show", "cluster")
		return err
	}); err != nil {
		return err
	}
	return c.Account(ctx, "add", "cluster", c.name())
}

// mariadb makes a database's folder and starts its daemon, which needs none of MariaDB's own tables but that of stored
// procedures: slurmdbd makes some.
func (c *Cluster) mariadb(ctx context.Context, data, socket string) error {
	id, err := IDs("slurm")
	if err != nil {
		return err
	}
	procedures, err := procTable()
	if err != nil {
		return err
	}
	for _, dir := range []string{c.Path("db"), data, filepath.Join(data, "mysql")} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, int(id.Uid), int(id.Gid))); err != nil {
			return err
		}
	}
	first := c.Path("first.sql")
	if err := os.WriteFile(first, []byte("USE mysql;\n"+procedures), 0o644); err != nil {
		return err
	}
	server, err := findProgram("", "mariadbd")
	if err != nil {
		return err
	}
	// What is lost in a crash would go with the folder anyway.
	cmd := exec.Command(server, "--no-defaults", "--datadir="+data, "--init-file="+first, "--socket="+socket,
		"--pid-file="+c.Path("db", "pid"),
		"--tmpdir="+c.Path("db"), "--skip-networking", "--skip-grant-tables", "--skip-log-bin",
		"--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M")
	cmd.Env = c.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id}
	return c.serve(ctx, "mariadbd", cmd, func() error {
		_, err := os.Stat(socket) // made when it is ready
		return err
	})
}

// procTable is the statement by which MariaDB's installation makes the table of stored procedures.
func procTable() (string, error) {
	files, err := filepath.Glob("/usr/share/m*/m*_system_tables.sql") // mysql or mariadb, by release
	for _, f := range files {
		text, rerr := os.ReadFile(f)
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "CREATE TABLE IF NOT EXISTS proc ") {
				return line, nil
			}
		}
		err = errors.Join(err, rerr)
	}
	return "", errors.Join(err, errors.New("MariaDB's own tables are not described in /usr/share"))
}

// thereAlready is what sacctmgr says of what it is to add and finds there, the last from
// 26.05 on.
var thereAlready = []string{"Nothing new added", "already exists", "Already existing"}

// Account runs sacctmgr without asking back, e.g. Account(ctx, "add", "account",
// "lab"). What is there already is no error.
func (c *Cluster) Account(ctx context.Context, args ...string) error {
	out, err := c.Run(ctx, "sacctmgr", append([]string{"-i"}, args...)...)
	if err != nil && slices.ContainsFunc(thereAlready, func(s string) bool { return strings.Contains(out, s) }) {
		return nil
	}
	return err
}
