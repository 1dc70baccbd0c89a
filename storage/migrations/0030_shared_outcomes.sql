-- Before rights existed, all users of the control socket shared the outcomes of requests.  A program
-- that lost an answer before the upgrade must still hear that its request was executed.
ALTER TABLE outcome ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;
UPDATE outcome SET shared = 1;
