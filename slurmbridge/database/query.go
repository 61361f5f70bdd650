package database

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"
)

// Querier is a database or a transaction.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// Each calls row for each row of a query's result.
func Each(ctx context.Context, q Querier, row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// List returns the rows of a query's result; columns says where one row's columns go. It is never nil.
func List[T any](ctx context.Context, q Querier, columns func(*T) []any, query string, args ...any) ([]T, error) {
	out := []T{}
	err := Each(ctx, q, func(rows *sql.Rows) error {
		var one T
		if err := rows.Scan(columns(&one)...); err != nil {
			return err
		}
		out = append(out, one)
		return nil
	}, query, args...)
	return out, err
}

// Tx runs f in a transaction and commits it, unless f fails.
func Tx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // after Commit it has nothing to do
	if err := f(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

// Read runs f on one state of the database, whatever is written meanwhile.
func Read(ctx context.Context, db *sql.DB, f func(Querier) error) error {
	c, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("read the database: %w", err)
	}
	defer c.Close()
	if _, err := c.ExecContext(ctx, `BEGIN`); err != nil { // BeginTx would keep others from writing
		return fmt.Errorf("begin reading: %w", err)
	}
	defer c.ExecContext(context.WithoutCancel(ctx), `ROLLBACK`) //nolint:errcheck // nothing was written
	return f(c)
}

// JSON is a column that holds *v as JSON.
func JSON(v any) Column {
	return Column{
		scan: func(src any) error {
			text, ok := src.(string)
			if !ok {
				return fmt.Errorf("JSON in a column of %T", src)
			}
			return json.Unmarshal([]byte(text), v)
		},
		value: func() (driver.Value, error) {
			text, err := json.Marshal(v)
			return string(text), err
		},
	}
}

// Millis is a column that holds *t in ms since 1970; NULL and 0 are the zero time.
func Millis(t *time.Time) Column {
	return Column{
		scan: func(src any) error {
			ms, _ := src.(int64)
			*t = time.Time{}
			if ms != 0 {
				*t = time.UnixMilli(ms)
			}
			return nil
		},
		value: func() (driver.Value, error) { return t.UnixMilli(), nil },
	}
}

// Column converts between a column and a Go value.
type Column struct {
	scan  func(src any) error
	value func() (driver.Value, error)
}

// Scan implements sql.Scanner.
func (c Column) Scan(src any) error { return c.scan(src) }

// Value implements driver.Valuer.
func (c Column) Value() (driver.Value, error) { return c.value() }
